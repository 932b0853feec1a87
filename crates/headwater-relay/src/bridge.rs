//! Bridges: what Kafka, RabbitMQ or NATS JetStream holds, into a topic.
//!
//! # Why each message is published once
//! A batch of messages is published in one transaction of the database, together with what says that they were read. Only after its commit is
//! the broker answered. Wherever a bridge is killed, the broker delivers again what it was not answered for, and the transaction of the repeat
//! finds what the first one stored:
//! - **Kafka**: the next offset of each partition ([`headwater::bridge::BridgePositions`]). It starts there and not at the offsets of a group of
//!   Kafka's. A position moves only from where the bridge knows it to be, so a second process with the same bridge publishes nothing twice either.
//! - **RabbitMQ** and **NATS**: an entry of the inbox for each message, by its id. A message of NATS without one has an id by its place
//!   in the stream. A message of RabbitMQ without one has none: it is published at least once.
//!
//! # Messages that cannot be published
//! One that breaks a rule of messages (a payload over the topic's limit, a header that is no text) is parked in the dead letters in that same
//! transaction, with the reason, and counts as read. After the cause is removed, a redrive publishes it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headwater::{Error, Headwater, Producer, Result};
use tokio::sync::watch;

mod commit;
mod health;
mod incoming;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
mod run;
mod source;

pub use health::{BridgeHealth, BridgeState};
pub use incoming::{
    CONTENT_TYPE_HEADER, CORRELATION_ID_HEADER, CREATED_AT_HEADER, ID_HEADER, KEY_HEADER, TOMBSTONE_HEADER,
    TYPE_HEADER,
};

use source::From;

use crate::sink::SinkError;

/// Messages of one transaction at most, by default.
const BATCH_MESSAGES: usize = 500;
/// Most messages of one transaction.
const BATCH_MESSAGES_MAX: usize = 10_000;
/// Longest name of a bridge: with a word before it, it names what parked a message.
const NAME_BYTES_MAX: usize = 90;

/// A bridge from another broker into a topic, which must exist.
///
/// | from | URL |
/// |---|---|
/// | Kafka | `kafka://host:9092,host:9092/topic`; `?start=latest` begins at the end the first time, `?key=hex` or `none` for keys that are no text, and any property of librdkafka |
/// | RabbitMQ | `amqp://user:password@host/vhost?queue=orders` |
/// | NATS JetStream | `nats://host/subject`; wildcards are allowed, `?stream=` if several streams have it, `?start=latest` as above, `?ack_wait_ms=` (30 s): how late what a killed bridge held comes again |
///
/// ```no_run
/// # async fn start(headwater: headwater::Headwater) -> Result<(), headwater_relay::bridge::BridgeError> {
/// use headwater_relay::bridge::Bridge;
///
/// let bridge = Bridge::from_url(&headwater, "kafka://kafka:9092/orders", "orders")?.name("legacy-orders");
/// bridge.check().await?; // reports what is wrong at once; a running bridge tries again
/// let running = bridge.start()?;
/// println!("{:?}", running.health());
/// running.stop().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Bridge {
    headwater: Headwater,
    topic: String,
    name: String,
    from: Arc<From>,
    producer: Producer,
    batch_messages: usize,
}

/// Why a bridge cannot run.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// The store of the topic, or a setting of the bridge.
    #[error(transparent)]
    Store(#[from] Error),
    /// The broker.
    #[error(transparent)]
    Broker(#[from] SinkError),
}

impl Bridge {
    /// A bridge from what a URL names into a topic. Nothing is connected yet.
    pub fn from_url(headwater: &Headwater, url: &str, topic: &str) -> Result<Self> {
        let from = From::from_url(url)?;
        headwater::TopicName::new(topic)?;
        let name = format!("{}:{}:{topic}", from.kind(), from.name());
        Ok(Bridge {
            headwater: headwater.clone(),
            topic: topic.to_owned(),
            name,
            from: Arc::new(from),
            producer: headwater.producer(topic),
            batch_messages: BATCH_MESSAGES,
        })
    }

    /// Sets its name, under which it remembers what it has read: one with another name starts anew. By default it is made of what it
    /// reads and the topic, such as `kafka:orders:orders`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets how many messages are published in one transaction at most: 500 by default. Twice as many are requested of the broker in
    /// advance.
    #[must_use]
    pub fn batch_messages(mut self, messages: usize) -> Self {
        self.batch_messages = messages;
        self
    }

    /// Its name.
    pub fn named(&self) -> &str {
        &self.name
    }

    /// Connects and disconnects: an error if the topic, or what is read, does not exist, or a login is refused. Nothing is read or
    /// written, but for the durable consumer of NATS.
    pub async fn check(&self) -> Result<(), BridgeError> {
        self.check_settings()?;
        self.headwater.topics().get(&self.topic).await?;
        let source = self.from.open(self).await?;
        source.close().await;
        Ok(())
    }

    /// Starts it. It runs until it is stopped, or this is dropped: it reconnects after any trouble, with a back-off of up to 30 s.
    pub fn start(self) -> Result<RunningBridge> {
        self.check_settings()?;
        let (stop, stopped) = watch::channel(false);
        let health = health::Health::new(&self.name, self.from.kind());
        let task = tokio::spawn(run::run(self, stopped, Arc::clone(&health)));
        Ok(RunningBridge { stop, health, task: Some(task) })
    }

    fn check_settings(&self) -> Result<()> {
        let bytes = self.name.len();
        if !(1..=NAME_BYTES_MAX).contains(&bytes) || self.name.contains(char::is_control) {
            let rule = format!(
                "{bytes} bytes; 1 to {NAME_BYTES_MAX} without control characters are allowed; set a name"
            );
            return Err(Error::invalid("name of the bridge", rule));
        }
        if !(1..=BATCH_MESSAGES_MAX).contains(&self.batch_messages) {
            let rule = format!("{}; 1 to {BATCH_MESSAGES_MAX} are allowed", self.batch_messages);
            return Err(Error::invalid("batch_messages", rule));
        }
        Ok(())
    }
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge")
            .field("name", &self.name)
            .field("from", &self.from.place())
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

/// A bridge that runs. Dropping it ends it where it is: nothing is lost or published twice.
#[derive(Debug)]
pub struct RunningBridge {
    stop: watch::Sender<bool>,
    health: Arc<health::Health>,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl RunningBridge {
    /// What it does and has done.
    pub fn health(&self) -> BridgeHealth {
        self.health.read()
    }

    /// Ends it after the batch in hand, which is waited for.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        if let Some(task) = self.task.take() {
            let abort = task.abort_handle();
            // A database that does not answer must not hold up the end of the program.
            if tokio::time::timeout(Duration::from_secs(30), task).await.is_err() {
                abort.abort();
            }
        }
    }
}

impl Drop for RunningBridge {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}
