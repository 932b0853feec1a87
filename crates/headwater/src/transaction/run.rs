//! A transaction of the program's own, outside of handlers: its writes and what it publishes commit together.

use std::future::Future;

#[cfg(feature = "sqlite")]
use tracing::Instrument;

use super::Transaction;
use crate::Headwater;
use crate::error::Error;
#[cfg(feature = "sqlite")]
use crate::observe::trace;
use crate::store::Store;

impl Headwater {
    /// Runs a closure in a transaction of the store, and commits it if the closure returns `Ok`: an application's own
    /// rows and the messages about them, together or not at all, the same on both databases. The rules of
    /// [`Transaction`] hold. To publish in a transaction of a driver instead, see the crate's chapter on publishing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// use headwater::transaction::Transaction;
    /// use headwater::{Headwater, Result};
    ///
    /// let headwater = Headwater::in_memory().await?;
    /// headwater.topic("orders").create().await?;
    /// let placed = headwater.transaction(|tx: Transaction| async move {
    ///     tx.execute("CREATE TABLE shop_order (id bigint, cents bigint)", ()).await?;
    ///     tx.execute("INSERT INTO shop_order (id, cents) VALUES ($1, $2)", (7, 500)).await?;
    ///     tx.publish("orders", &7).await
    /// });
    /// assert!(placed.await?.offset.is_some());
    /// // An error rolls back: neither the row nor the message exists.
    /// let failed: Result<()> = headwater.transaction(|tx: Transaction| async move {
    ///     tx.execute("INSERT INTO shop_order (id, cents) VALUES ($1, $2)", (8, 500)).await?;
    ///     tx.publish("orders", &8).await?;
    ///     tx.execute("INSERT INTO no_such_table VALUES (1)", ()).await?;
    ///     Ok(())
    /// }).await;
    /// assert!(failed.is_err());
    /// assert_eq!(headwater.published("orders").await?.len(), 1);
    /// # headwater.close().await }
    /// ```
    pub async fn transaction<T, E, F>(
        &self,
        work: impl FnOnce(Transaction) -> F + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        in_store(&**self.store(), work).await
    }
}

/// The same for a store.
pub(crate) async fn in_store<T, E, F>(
    store: &dyn Store,
    work: impl FnOnce(Transaction) -> F + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Error> + Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    #[cfg(feature = "postgres")]
    if let Some(postgres) = store.as_postgres() {
        let transaction = postgres.begin().await?;
        let done = work(transaction.clone().into()).await;
        match &done {
            Ok(_) => transaction.commit().await?,
            // A connection whose transaction may be open is closed if this fails.
            Err(_) => transaction.rollback().await.unwrap_or_default(),
        }
        return done;
    }
    #[cfg(feature = "sqlite")]
    if let Some(sqlite) = store.as_sqlite() {
        // It runs on the writer thread, within the trace and the span of the caller.
        let (context, span) = (trace::current(), tracing::Span::current());
        return sqlite
            .transaction(move |transaction| {
                async move {
                    match context {
                        Some(context) => trace::within(context, work(transaction)).await,
                        None => work(transaction).await,
                    }
                }
                .instrument(span)
            })
            .await;
    }
    unreachable!("{} has no transactions of its own", store.engine())
}
