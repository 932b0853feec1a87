//! Requests: a message, and the one that answers it.

use std::future::IntoFuture;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use uuid::Uuid;

use super::Producer;
use super::replies::{REPLIES_TOPIC, REPLY_TO};
use crate::codec::Decode;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Message, NewMessage};

/// How long a request waits for its reply, unless set otherwise.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// A request to be sent: set further fields, then await its reply.
///
/// The request is a message like any other: durable, retried, in the dead letters if it fails each time. It expires with the
/// time-out, so that no handler works on an answer that is no longer awaited. Handlers may run twice, as always: the first reply
/// counts. A request without a reply in time is [`ErrorKind::Timeout`]; it may have been handled.
///
/// Replies come through the topic `headwater.replies`, which the first request creates with a short retention; programs whose
/// role may not create topics need it to exist.
///
/// ```
/// # #[tokio::main] async fn main() -> headwater::Result<()> {
/// # use std::time::Duration;
/// use headwater::{Context, Headwater, Json};
///
/// let headwater = Headwater::in_memory().await?;
/// let running = headwater
///     .consumer("prices", "calculator")
///     .member("one", |Json(item): Json<String>, context: Context| async move {
///         context.reply(&(item.len() * 10)).await?;
///         Ok(())
///     })
///     .run()
///     .await?;
///
/// let Json(price) = headwater
///     .producer("prices")
///     .request(&"kettle")
///     .timeout(Duration::from_secs(5))
///     .answer::<Json<u64>>()
///     .await?;
/// assert_eq!(price, 60);
/// # running.shutdown(Duration::from_secs(10)).await?;
/// # headwater.close().await }
/// ```
#[derive(Debug)]
#[must_use = "nothing is sent before it is awaited"]
pub struct Requests<'p> {
    producer: &'p Producer,
    message: Result<NewMessage>,
    timeout: Duration,
}

impl<'p> Requests<'p> {
    pub(super) fn new(producer: &'p Producer, message: Result<NewMessage>) -> Self {
        Requests { producer, message, timeout: TIMEOUT_DEFAULT }
    }

    fn with(mut self, change: impl FnOnce(NewMessage) -> NewMessage) -> Self {
        self.message = self.message.map(change);
        self
    }

    /// How long to wait for the reply, 30 seconds by default. The request expires with it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the key: requests of one key go to one member, and in order where the topic is ordered.
    pub fn key(self, key: impl std::fmt::Display) -> Self {
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

    /// Waits for the reply and decodes it. A reply that cannot be decoded is `InvalidInput`.
    pub async fn answer<T: Decode>(self) -> Result<T> {
        let reply = self.await?;
        reply.decode().map_err(|error| {
            Error::with_source(ErrorKind::InvalidInput, format!("invalid reply: {error}"), error)
        })
    }

    async fn run(self) -> Result<Message> {
        let log = self.producer.log()?;
        let (message, until) = (self.message?, Instant::now() + self.timeout);
        let id = Uuid::now_v7().to_string();
        let unanswered = || {
            let text = format!(
                "no reply within {:?} to the request to topic {}, correlation id {id}; it may have been handled: check that a \
                 consumer of the topic runs and calls context.reply",
                self.timeout, log.topic
            );
            Error::new(ErrorKind::Timeout, text)
        };
        let message = message.correlation_id(&*id).header(REPLY_TO, REPLIES_TOPIC).expires_in(self.timeout);
        let asked = async {
            // Before the request is published: whatever commits after that is read.
            let reply = self.producer.replies.expect(&log.store, &id).await?;
            self.producer.send_now(Ok(message)).await?;
            reply.await
        };
        tokio::time::timeout_at(until, asked).await.unwrap_or_else(|_| Err(unanswered()))
    }
}

impl<'p> IntoFuture for Requests<'p> {
    type Output = Result<Message>;
    type IntoFuture = BoxFuture<'p, Result<Message>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
