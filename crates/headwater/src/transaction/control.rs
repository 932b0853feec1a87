//! A transaction that several messages share, without a savepoint for each: a handler that ended it would commit inbox
//! entries of messages that are not handled yet. Statements that do so are therefore refused there, before they run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Transaction;
use crate::error::{Error, ErrorKind, Result};

/// Whether a statement was refused. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Control(Arc<AtomicBool>);

impl Transaction {
    /// The same transaction, shared by the messages of a slice.
    pub(crate) fn shared(mut self) -> Self {
        self.control = Some(Control::default());
        self
    }

    /// Whether no handler tried to end a shared transaction, even if it ignored the error.
    pub(crate) fn check_shared(&self) -> Result<()> {
        match &self.control {
            Some(control) if control.0.load(Ordering::Relaxed) => Err(refused()),
            _ => Ok(()),
        }
    }

    /// Whether a statement may run.
    pub(super) fn check_statement(&self, sql: &str) -> Result<()> {
        match &self.control {
            Some(control) if ends_transaction(sql) => {
                control.0.store(true, Ordering::Relaxed);
                Err(refused())
            }
            _ => Ok(()),
        }
    }
}

fn refused() -> Error {
    let text = "a handler tried to end the transaction of its slice; leave BEGIN, COMMIT and ROLLBACK to the consumer";
    Error::new(ErrorKind::InvalidInput, text)
}

/// Whether a statement begins or ends a transaction. Each text is one statement, so its first words decide.
fn ends_transaction(sql: &str) -> bool {
    let mut words =
        without_comments(sql).split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty());
    let mut next = || words.next().unwrap_or_default().to_ascii_uppercase();
    match next().as_str() {
        "BEGIN" | "START" | "COMMIT" | "END" | "ABORT" => true,
        "ROLLBACK" => {
            let after = next();
            let after = if matches!(after.as_str(), "TRANSACTION" | "WORK") { next() } else { after };
            after != "TO"
        }
        "PREPARE" => next() == "TRANSACTION",
        _ => false,
    }
}

/// What follows leading blanks and comments. A nested comment ends here with the first one inside, as it does on SQLite: at
/// worst too much is refused, and the slice is handled message by message.
fn without_comments(sql: &str) -> &str {
    let mut rest = sql.trim_start();
    loop {
        let after = if let Some(line) = rest.strip_prefix("--") {
            line.split_once('\n')
        } else if let Some(inside) = rest.strip_prefix("/*") {
            inside.split_once("*/")
        } else {
            return rest;
        };
        rest = after.map_or("", |(_, after)| after.trim_start());
    }
}

#[cfg(test)]
mod tests {
    use super::ends_transaction;

    #[test]
    fn only_statements_that_end_a_transaction_are_refused() {
        for sql in [
            "COMMIT",
            " commit;",
            "END",
            "Rollback",
            "ROLLBACK WORK",
            "ABORT",
            "BEGIN IMMEDIATE",
            "START TRANSACTION",
            "-- why\nCOMMIT",
            "/* a /* b */ */ commit",
            "; COMMIT",
            "PREPARE TRANSACTION 'x'",
        ] {
            assert!(ends_transaction(sql), "{sql}");
        }
        for sql in [
            "",
            "--",
            "/* COMMIT",
            "SELECT 1",
            "ROLLBACK TO SAVEPOINT a",
            "rollback transaction to a",
            "SAVEPOINT a",
            "RELEASE a",
            "PREPARE plan AS SELECT 1",
            "INSERT INTO ending VALUES ('COMMIT')",
            "commitments",
        ] {
            assert!(!ends_transaction(sql), "{sql}");
        }
    }
}
