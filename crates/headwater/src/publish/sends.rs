//! A message, or a batch, that is about to be sent: at once when awaited, or within a transaction of the program's own.

use std::borrow::Cow;
use std::fmt::Display;
use std::future::IntoFuture;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::Producer;
use super::within::{Publishing, Transaction};
use crate::error::Result;
use crate::message::{NewMessage, Published};
use crate::observe::trace::{self, TraceContext};

/// A message to be sent: set further fields, then await it, or pass a transaction to [`Sends::within`].
#[derive(Debug)]
#[must_use = "nothing is sent before it is awaited"]
pub struct Sends<'p> {
    producer: Cow<'p, Producer>,
    message: Result<NewMessage>,
}

impl<'p> Sends<'p> {
    pub(super) fn new(producer: Cow<'p, Producer>, message: Result<NewMessage>) -> Self {
        Sends { producer, message }
    }

    fn with(mut self, change: impl FnOnce(NewMessage) -> NewMessage) -> Self {
        self.message = self.message.map(change);
        self
    }

    /// Sets the key: messages of one key go to one member, and in order where the topic is ordered.
    pub fn key(self, key: impl Display) -> Self {
        self.with(|message| message.key(key))
    }

    /// Sets the type.
    pub fn message_type(self, message_type: impl Into<String>) -> Self {
        self.with(|message| message.message_type(message_type))
    }

    /// Adds a header.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|message| message.header(name, value))
    }

    /// Links messages of one conversation.
    pub fn correlation_id(self, id: impl Into<String>) -> Self {
        self.with(|message| message.correlation_id(id))
    }

    /// Deduplicates: a repeat of the same key within the topic's window is not stored.
    pub fn dedup_key(self, key: impl Into<String>) -> Self {
        self.with(|message| message.dedup_key(key))
    }

    /// Schedules the message: it is not delivered before this time.
    pub fn deliver_at(self, at: jiff::Timestamp) -> Self {
        self.with(|message| message.deliver_at(at))
    }

    /// Schedules the message: it is not delivered before this much time has passed, by the database's clock.
    /// [`Headwater::scheduled`](crate::Headwater::scheduled) cancels or moves it until then.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|message| message.delay(delay))
    }

    /// Lets the message expire if it is not handled within this time: consumers then skip and count it. See
    /// [`NewMessage::expires_in`].
    pub fn expires_in(self, within: Duration) -> Self {
        self.with(|message| message.expires_in(within))
    }

    /// Gives it this trace context instead of the current one: where the sending thread has none, as in `spawn_blocking`.
    pub fn traced(self, context: &TraceContext) -> Self {
        self.with(|message| message.traced(context))
    }

    /// Publishes in a transaction of the program's own, on the store's database: it is delivered once that commits, and never
    /// if it rolls back. With tokio-postgres and sqlx the result is a future; with rusqlite it is there at once.
    ///
    /// On PostgreSQL the topic must exist: created here, it would be rolled back too. Counted as
    /// `headwater_published_in_transaction_total` when this returns, whatever becomes of the transaction.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use headwater::{Headwater, rusqlite::Connection};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("shop.db");
    /// # let headwater = Headwater::open(&format!("sqlite:{}", path.display())).await?;
    /// let orders = headwater.producer("orders");
    /// let mut connection = Connection::open(&path)?; // the program's own, to the file of the store
    /// let transaction = connection.transaction()?;
    /// transaction.execute("CREATE TABLE shop_order (id INTEGER PRIMARY KEY)", [])?;
    /// orders.send(&serde_json::json!({ "id": 7 })).key("customer-1").within(&transaction)?;
    /// transaction.commit()?;
    /// # assert_eq!(headwater.published("orders").await?.len(), 1);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "sqlite"))] fn main() {}
    /// ```
    #[must_use = "futures do nothing unless awaited"]
    pub fn within<T: Transaction>(self, transaction: T) -> T::Answer<Published> {
        let messages = self.message.map(|mut message| {
            trace::inject(&mut message);
            vec![message]
        });
        let one = |mut published: Vec<Published>| published.remove(0);
        transaction.publish(Publishing::new(&self.producer, messages, one))
    }
}

impl<'p> IntoFuture for Sends<'p> {
    type Output = Result<Published>;
    type IntoFuture = BoxFuture<'p, Result<Published>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.producer.send_now(self.message).await })
    }
}

/// A batch to be sent: await it, or pass a transaction to [`SendsBatch::within`].
#[derive(Debug)]
#[must_use = "nothing is sent before it is awaited"]
pub struct SendsBatch<'p> {
    producer: &'p Producer,
    messages: &'p [NewMessage],
}

impl<'p> SendsBatch<'p> {
    pub(super) fn new(producer: &'p Producer, messages: &'p [NewMessage]) -> Self {
        SendsBatch { producer, messages }
    }

    /// Publishes the batch in a transaction of the program's own, as [`Sends::within`] does.
    #[must_use = "futures do nothing unless awaited"]
    pub fn within<T: Transaction>(self, transaction: T) -> T::Answer<Vec<Published>> {
        let messages = trace::injected(self.messages).into_owned();
        transaction.publish(Publishing::new(self.producer, Ok(messages), |published| published))
    }
}

impl<'p> IntoFuture for SendsBatch<'p> {
    type Output = Result<Vec<Published>>;
    type IntoFuture = BoxFuture<'p, Result<Vec<Published>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.producer.send_batch_now(self.messages))
    }
}
