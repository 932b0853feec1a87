//! What the repositories share (outbox, inbox, bridges, dead letters, relays, processes): an operation is one statement of the
//! store, in a transaction of its own or in the caller's.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::limits::NAME_BYTES_MAX;
use crate::store::Store;
use crate::store::actor::acting;
use crate::store::repository::Verb;
use crate::transaction::{Row, Transaction, Value};

/// A store, and the transaction that operations run in, if the caller has one.
#[derive(Clone, Debug)]
pub(crate) struct Repository {
    pub(crate) store: Arc<dyn Store>,
    within: Option<Transaction>,
}

impl Repository {
    pub(crate) fn new(store: &Arc<dyn Store>) -> Self {
        Repository { store: Arc::clone(store), within: None }
    }

    /// The same in a transaction of the caller.
    pub(crate) fn within(&self, transaction: &Transaction) -> Self {
        Repository { store: Arc::clone(&self.store), within: Some(transaction.clone()) }
    }

    /// The caller's transaction.
    pub(crate) fn transaction(&self) -> Option<&Transaction> {
        self.within.as_ref()
    }

    /// Runs a statement; in the caller's transaction its reads see what that has written.
    pub(crate) async fn run(&self, verb: Verb, params: Vec<Value>) -> Result<Vec<Row>> {
        acting(self.store.caller(), self.run_now(verb, params)).await
    }

    async fn run_now(&self, verb: Verb, params: Vec<Value>) -> Result<Vec<Row>> {
        if let Some(transaction) = &self.within {
            return transaction.run_verb(&self.store, verb, params).await;
        }
        #[cfg(feature = "postgres")]
        if let Some(postgres) = self.store.as_postgres() {
            return postgres.run_verb(verb, params).await;
        }
        #[cfg(feature = "sqlite")]
        if let Some(sqlite) = self.store.as_sqlite() {
            return sqlite.run_verb(verb, params).await;
        }
        unreachable!("{} has no repositories", self.store.engine())
    }

    /// Runs a statement that returns one row.
    pub(crate) async fn one(&self, verb: Verb, params: Vec<Value>) -> Result<Row> {
        Ok(self.run(verb, params).await?.pop().expect("it returns one row"))
    }
}

/// The rule for ids of other systems: 1 to 255 bytes of any characters but NUL, which PostgreSQL's text cannot hold.
pub(crate) fn check_id(field: &str, value: &str) -> Result<()> {
    check_id_within(field, value, NAME_BYTES_MAX)
}

/// The same with another limit.
pub(crate) fn check_id_within(field: &str, value: &str, bytes_max: usize) -> Result<()> {
    if value.is_empty() {
        return Err(Error::invalid(field, "must not be empty"));
    }
    if value.len() > bytes_max {
        let bytes = value.len();
        return Err(Error::invalid(field, format!("{bytes} bytes, at most {bytes_max} are allowed")));
    }
    if value.contains('\0') {
        return Err(Error::invalid(field, "contains NUL, which text in PostgreSQL cannot; remove it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn ids_of_other_systems_have_any_characters_but_nul() {
        for good in ["1", "a\nb", "Robert'); DROP TABLE inbox;--", "größe", &"x".repeat(255)] {
            check_id("message_id", good).unwrap();
        }
        let long = "x".repeat(256);
        for (bad, says) in [("", "empty"), ("a\0b", "NUL"), (long.as_str(), "256 bytes")] {
            let error = check_id("message_id", bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let text = error.to_string();
            assert!(text.starts_with("invalid message_id: ") && text.contains(says), "{text}");
        }
    }
}
