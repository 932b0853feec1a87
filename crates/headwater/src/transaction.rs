//! The store's transaction as a handler sees it, whichever database it is in: statements with neutral values, and
//! publishing. [`Handling::transactional`](crate::Handling::transactional) hands it out.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use uuid::Uuid;

use crate::codec::IntoMessage;
use crate::error::{Error, Result};
use crate::message::{NewMessage, Published};
use crate::name::TopicName;
use crate::observe::trace;
use crate::process::rows::id_value;
use crate::publish::wrong_engine;
use crate::store::Store;
#[cfg(feature = "postgres")]
use crate::store::postgres::PostgresTransaction;
use crate::store::repository::Verb;
#[cfg(feature = "sqlite")]
use crate::store::sqlite::{Requests, ToPublish};

mod control;
pub(crate) mod run;
mod value;

use control::Control;
pub use value::{Column, FromValue, IntoParams, Row, Value};

/// An open transaction of the store, for a handler to write in: its writes, its inbox entry and its ack commit together.
///
/// The same on both databases: statements are the database's own SQL, parameters are `$1`, `$2` and so on, and values are
/// of the types in [`Value`]. Leave BEGIN, COMMIT and ROLLBACK to the consumer.
///
/// On SQLite the handler runs on the store's writer thread, and nothing else is written to the file meanwhile. It may
/// await its transaction, and nothing that is not ready at once: a call over the network, a timer or a send of a
/// [`Producer`](crate::Producer) fails the message, with an error that says so. On PostgreSQL a handler may await
/// anything, and holds its connection meanwhile; one that keeps to the rule runs on both.
#[derive(Clone, Debug)]
pub struct Transaction {
    inside: Inside,
    /// Where several messages share it without savepoints.
    control: Option<Control>,
}

#[derive(Clone, Debug)]
enum Inside {
    #[cfg(feature = "postgres")]
    Postgres(PostgresTransaction),
    #[cfg(feature = "sqlite")]
    Sqlite(Requests),
}

#[cfg(feature = "postgres")]
impl From<PostgresTransaction> for Transaction {
    fn from(transaction: PostgresTransaction) -> Self {
        Transaction { inside: Inside::Postgres(transaction), control: None }
    }
}

#[cfg(feature = "sqlite")]
impl From<Requests> for Transaction {
    fn from(requests: Requests) -> Self {
        Transaction { inside: Inside::Sqlite(requests), control: None }
    }
}

impl Transaction {
    /// Runs a statement, and returns how many rows it changed.
    ///
    /// ```no_run
    /// # async fn handle(transaction: headwater::transaction::Transaction) -> headwater::Result<()> {
    /// transaction.execute("INSERT INTO ledger (id, cents, note) VALUES ($1, $2, $3)", (7, 500, "paid")).await?;
    /// # Ok(()) }
    /// ```
    pub fn execute(&self, sql: &str, params: impl IntoParams) -> BoxFuture<'static, Result<u64>> {
        let checked = self.check_statement(sql);
        let (inside, sql, params) = (self.inside.clone(), sql.to_owned(), params.into_params());
        Box::pin(async move {
            checked?;
            match inside {
                #[cfg(feature = "postgres")]
                Inside::Postgres(transaction) => transaction.change(&sql, &params).await,
                #[cfg(feature = "sqlite")]
                Inside::Sqlite(requests) => requests.execute(sql, params).await,
            }
        })
    }

    /// Runs a statement, and returns its rows.
    ///
    /// ```no_run
    /// # async fn handle(transaction: headwater::transaction::Transaction) -> headwater::Result<()> {
    /// // A cast to bigint: a sum is of another type on PostgreSQL.
    /// let rows = transaction.query("SELECT CAST(sum(cents) AS bigint) AS total FROM ledger", ()).await?;
    /// let total: Option<i64> = rows[0].get("total")?;
    /// # let _ = total; Ok(()) }
    /// ```
    pub fn query(&self, sql: &str, params: impl IntoParams) -> BoxFuture<'static, Result<Vec<Row>>> {
        let checked = self.check_statement(sql);
        let (inside, sql, params) = (self.inside.clone(), sql.to_owned(), params.into_params());
        Box::pin(async move {
            checked?;
            match inside {
                #[cfg(feature = "postgres")]
                Inside::Postgres(transaction) => transaction.rows(&sql, &params).await,
                #[cfg(feature = "sqlite")]
                Inside::Sqlite(requests) => requests.query(sql, params).await,
            }
        })
    }

    /// Publishes a message in this transaction: it becomes visible when the handler's writes do, or never. The topic
    /// must exist. `producer.send(&order).within(&transaction)` does the same, with a producer's key, delay and counts.
    pub fn publish(&self, topic: &str, message: impl IntoMessage) -> BoxFuture<'static, Result<Published>> {
        let (inside, topic, message) = (self.inside.clone(), TopicName::new(topic), message.into_message());
        Box::pin(async move {
            let (topic, mut message): (TopicName, NewMessage) = (topic?, message?);
            trace::inject(&mut message);
            match inside {
                #[cfg(feature = "postgres")]
                Inside::Postgres(transaction) => {
                    Ok(transaction.publish_now(&topic, &[message]).await?.remove(0))
                }
                #[cfg(feature = "sqlite")]
                Inside::Sqlite(requests) => {
                    let publishing = ToPublish { topic, messages: vec![message], of: None };
                    Ok(requests.publish(publishing).await?.remove(0))
                }
            }
        })
    }

    /// Publishes messages to a topic in one statement. They have the trace that they are to have already.
    pub(crate) async fn publish_all(&self, topic: &str, messages: Vec<NewMessage>) -> Result<Vec<Published>> {
        let topic = TopicName::new(topic)?;
        match &self.inside {
            #[cfg(feature = "postgres")]
            Inside::Postgres(transaction) => transaction.publish_now(&topic, &messages).await,
            #[cfg(feature = "sqlite")]
            Inside::Sqlite(requests) => requests.publish(ToPublish { topic, messages, of: None }).await,
        }
    }

    /// Runs a statement of a repository, whose store must be the one that began this transaction.
    pub(crate) async fn run_verb(
        &self,
        store: &Arc<dyn Store>,
        verb: Verb,
        params: Vec<Value>,
    ) -> Result<Vec<Row>> {
        match &self.inside {
            #[cfg(feature = "postgres")]
            Inside::Postgres(transaction) => match store.as_postgres() {
                Some(store) => transaction.run_verb(store, verb, params).await,
                None => Err(other_engine(&**store, "PostgreSQL")),
            },
            #[cfg(feature = "sqlite")]
            Inside::Sqlite(requests) => match store.as_sqlite() {
                Some(_) => requests.run_verb(store, verb, params).await,
                None => Err(other_engine(&**store, "SQLite")),
            },
        }
    }

    /// Publishes for a producer, whose store must be the one that began this transaction.
    pub(crate) async fn publish_of(
        &self,
        store: &Arc<dyn Store>,
        topic: &TopicName,
        messages: &[NewMessage],
    ) -> Result<Vec<Published>> {
        match &self.inside {
            #[cfg(feature = "postgres")]
            Inside::Postgres(transaction) => match store.as_postgres() {
                Some(store) => transaction.publish_of(store, topic, messages).await,
                None => Err(wrong_engine(&**store, topic, "PostgreSQL")),
            },
            #[cfg(feature = "sqlite")]
            Inside::Sqlite(requests) => match store.as_sqlite() {
                Some(_) => {
                    let (topic, messages) = (topic.clone(), messages.to_vec());
                    requests.publish(ToPublish { topic, messages, of: Some(Arc::clone(store)) }).await
                }
                None => Err(wrong_engine(&**store, topic, "SQLite")),
            },
        }
    }
}

/// What the repositories need of a transaction.
impl Transaction {
    /// The time as a parameter: milliseconds since 1970, or NULL for the clock of the server. Refuses a transaction that
    /// another store than this one began.
    pub(crate) async fn time_of(&self, store: Option<&Arc<dyn Store>>) -> Result<Value> {
        match &self.inside {
            #[cfg(feature = "postgres")]
            Inside::Postgres(transaction) => match store.map(|store| (store, store.as_postgres())) {
                Some((store, None)) => Err(other_engine(&**store, "PostgreSQL")),
                Some((_, Some(store))) => transaction.time_of(Some(store)),
                None => transaction.time_of(None),
            },
            #[cfg(feature = "sqlite")]
            Inside::Sqlite(requests) => match store {
                Some(store) if store.as_sqlite().is_none() => Err(other_engine(&**store, "SQLite")),
                store => Ok(Value::Integer(requests.now(store.cloned()).await?)),
            },
        }
    }

    /// Runs a statement of a repository as it is, with the time among its parameters. No rows where this engine has none,
    /// because another of its statements has done it.
    pub(crate) fn rows_of(&self, verb: Verb, params: Vec<Value>) -> BoxFuture<'static, Result<Vec<Row>>> {
        match self.text_of(verb) {
            Some(sql) => self.query(sql, params),
            None => Box::pin(std::future::ready(Ok(Vec::new()))),
        }
    }

    /// The text of a statement, if this engine has one.
    pub(crate) fn text_of(&self, verb: Verb) -> Option<&str> {
        match &self.inside {
            #[cfg(feature = "postgres")]
            Inside::Postgres(transaction) => transaction.text_of(verb),
            #[cfg(feature = "sqlite")]
            Inside::Sqlite(_) => crate::store::sqlite::text_of(verb),
        }
    }

    /// Whether a caller may lack the right to publish.
    pub(crate) fn has_roles(&self) -> bool {
        match &self.inside {
            #[cfg(feature = "postgres")]
            Inside::Postgres(_) => true,
            #[cfg(feature = "sqlite")]
            Inside::Sqlite(_) => false,
        }
    }

    /// An id as a parameter.
    pub(crate) fn id_value(&self, id: Uuid) -> Value {
        match &self.inside {
            #[cfg(feature = "postgres")]
            Inside::Postgres(_) => id_value(id, false),
            #[cfg(feature = "sqlite")]
            Inside::Sqlite(_) => id_value(id, true),
        }
    }
}

fn other_engine(store: &dyn Store, begun: &str) -> Error {
    let rule =
        format!("begun on {begun}, but the store is on {}; begin it on the store itself", store.engine());
    Error::invalid("transaction", rule)
}
