//! Publishing within a transaction of the program's own, whichever driver holds it.
//!
//! The producer knows the namespace and the engine: a transaction of another engine, of another namespace or on another file
//! is refused. Whether a connection of PostgreSQL is to the right database only the server can find out: without the
//! schema there, publishing fails.

use std::time::Instant;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use futures_util::future::BoxFuture;

use super::{Log, Producer};
use crate::error::{Error, Result};
use crate::message::{NewMessage, Published};
use crate::name::TopicName;
use crate::store::Store;
#[cfg(feature = "postgres")]
use crate::store::postgres::{self, PostgresStore, PostgresTransaction};
#[cfg(feature = "sqlite")]
use crate::store::sqlite::SqliteStore;

/// A transaction of the program's own that messages can be published in: a reference to one of tokio-postgres, of sqlx (feature
/// `sqlx`), of rusqlite, or to the one that a handler or [`Headwater::transaction`](crate::Headwater::transaction) gets. A connection of sqlx or rusqlite counts as well, for
/// transactions that were begun in SQL.
#[diagnostic::on_unimplemented(
    message = "messages cannot be published within `{Self}`",
    label = "not a reference to a transaction",
    note = "pass `&transaction` or `&mut transaction` of tokio-postgres, sqlx or rusqlite, from `headwater::tokio_postgres`, \
            `headwater::sqlx` (feature `sqlx`) or `headwater::rusqlite`, so that versions match"
)]
pub trait Transaction {
    /// A future of the result, or with rusqlite the result itself.
    type Answer<T: Send + 'static>;

    /// Publishes in it.
    fn publish<T: Send + 'static>(self, publishing: Publishing<T>) -> Self::Answer<T>;
}

/// What is published in a transaction, and where.
#[derive(Debug)]
pub struct Publishing<T> {
    log: Result<Log>,
    messages: Result<Vec<NewMessage>>,
    answer: fn(Vec<Published>) -> T,
}

impl<T> Publishing<T> {
    pub(super) fn new(
        producer: &Producer,
        messages: Result<Vec<NewMessage>>,
        answer: fn(Vec<Published>) -> T,
    ) -> Self {
        Publishing { log: producer.log().cloned(), messages, answer }
    }

    /// Publishes on PostgreSQL; `driver` names what the transaction is of.
    #[cfg(feature = "postgres")]
    async fn on_postgres(
        self,
        driver: &str,
        publish: impl AsyncFnOnce(&PostgresStore, &Log, &[NewMessage]) -> Result<Vec<Published>>,
    ) -> Result<T> {
        let (log, messages, start) = (self.log?, self.messages?, Instant::now());
        let published = match log.store.as_postgres() {
            Some(store) => publish(store, &log, &messages).await,
            None => Err(wrong_engine(&*log.store, &log.topic, driver)),
        };
        log.counted_within(start, messages.len(), published).map(self.answer)
    }

    /// Publishes on SQLite.
    #[cfg(feature = "sqlite")]
    fn on_sqlite(self, connection: &rusqlite::Connection) -> Result<T> {
        let (log, messages, start) = (self.log?, self.messages?, Instant::now());
        let published = match log.store.as_sqlite() {
            Some(store) => SqliteStore::publish_within(store, connection, &log.topic, &messages),
            None => Err(wrong_engine(&*log.store, &log.topic, "rusqlite")),
        };
        log.counted_within(start, messages.len(), published).map(self.answer)
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn wrong_engine(store: &dyn Store, topic: &TopicName, driver: &str) -> Error {
    let engine = store.engine();
    Error::invalid(
        "transaction",
        format!(
            "one of {driver} was passed, but topic {topic} is in a store on {engine}; begin the transaction on the store's own \
             database, or publish without `within`"
        ),
    )
}

#[cfg(feature = "postgres")]
impl<'t> Transaction for &'t tokio_postgres::Transaction<'_> {
    type Answer<T: Send + 'static> = BoxFuture<'t, Result<T>>;

    fn publish<T: Send + 'static>(self, publishing: Publishing<T>) -> Self::Answer<T> {
        Box::pin(publishing.on_postgres("tokio-postgres", async move |store, log, messages| {
            postgres::publish_within(store, self, &log.topic, messages).await
        }))
    }
}

#[cfg(feature = "postgres")]
impl<'t> Transaction for &'t mut tokio_postgres::Transaction<'_> {
    type Answer<T: Send + 'static> = BoxFuture<'t, Result<T>>;

    fn publish<T: Send + 'static>(self, publishing: Publishing<T>) -> Self::Answer<T> {
        (&*self).publish(publishing)
    }
}

/// The neutral transaction of a handler, or of [`Headwater::transaction`](crate::Headwater::transaction).
#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl<'t> Transaction for &'t crate::transaction::Transaction {
    type Answer<T: Send + 'static> = BoxFuture<'t, Result<T>>;

    fn publish<T: Send + 'static>(self, publishing: Publishing<T>) -> Self::Answer<T> {
        Box::pin(async move {
            let (log, messages, start) = (publishing.log?, publishing.messages?, Instant::now());
            let published = self.publish_of(&log.store, &log.topic, &messages).await;
            log.counted_within(start, messages.len(), published).map(publishing.answer)
        })
    }
}

/// The transaction that a handler on PostgreSQL gets.
#[cfg(feature = "postgres")]
impl<'t> Transaction for &'t PostgresTransaction {
    type Answer<T: Send + 'static> = BoxFuture<'t, Result<T>>;

    fn publish<T: Send + 'static>(self, publishing: Publishing<T>) -> Self::Answer<T> {
        Box::pin(publishing.on_postgres("a handler on PostgreSQL", async move |store, log, messages| {
            self.publish_of(store, &log.topic, messages).await
        }))
    }
}

#[cfg(feature = "sqlx")]
impl<'t> Transaction for &'t mut sqlx::PgConnection {
    type Answer<T: Send + 'static> = BoxFuture<'t, Result<T>>;

    fn publish<T: Send + 'static>(self, publishing: Publishing<T>) -> Self::Answer<T> {
        Box::pin(publishing.on_postgres("sqlx", async move |store, log, messages| {
            postgres::sqlx::publish_within(store, self, &log.topic, messages).await
        }))
    }
}

#[cfg(feature = "sqlx")]
impl<'t> Transaction for &'t mut sqlx::Transaction<'_, sqlx::Postgres> {
    type Answer<T: Send + 'static> = BoxFuture<'t, Result<T>>;

    fn publish<T: Send + 'static>(self, publishing: Publishing<T>) -> Self::Answer<T> {
        (&mut **self).publish(publishing)
    }
}

/// Also the connection that a handler gets, whose transaction is the store's.
#[cfg(feature = "sqlite")]
impl Transaction for &rusqlite::Connection {
    type Answer<T: Send + 'static> = Result<T>;

    fn publish<T: Send + 'static>(self, publishing: Publishing<T>) -> Self::Answer<T> {
        publishing.on_sqlite(self)
    }
}

#[cfg(feature = "sqlite")]
impl Transaction for &rusqlite::Transaction<'_> {
    type Answer<T: Send + 'static> = Result<T>;

    fn publish<T: Send + 'static>(self, publishing: Publishing<T>) -> Self::Answer<T> {
        publishing.on_sqlite(self)
    }
}

#[cfg(feature = "sqlite")]
impl Transaction for &mut rusqlite::Transaction<'_> {
    type Answer<T: Send + 'static> = Result<T>;

    fn publish<T: Send + 'static>(self, publishing: Publishing<T>) -> Self::Answer<T> {
        publishing.on_sqlite(self)
    }
}
