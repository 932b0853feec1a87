//! What a bridge reads: one kind of source per broker.

use std::time::Duration;

use async_trait::async_trait;
use headwater::{Error, Result};

use super::incoming::Incoming;
use super::{Bridge, BridgeError};
use crate::sink::SinkError;

/// The longest wait for a message before a bridge checks whether it should end.
pub(super) const IDLE: Duration = Duration::from_secs(1);
/// How long a batch that has a message waits for more.
pub(super) const LINGER: Duration = Duration::from_millis(10);
/// Bytes after which a batch is full.
pub(super) const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Messages in the order in which they were read, and what says that they were.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    pub(super) messages: Vec<Incoming>,
    /// The position after each message, where the source has positions: as many as messages, or none.
    pub(super) positions: Vec<Position>,
    bytes: usize,
}

/// The place of a message in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) source: std::sync::Arc<str>,
    /// What is stored before it is read; `None` if nothing is.
    pub(super) from: Option<i64>,
    /// What is stored after it was.
    pub(super) to: i64,
}

impl Batch {
    pub(super) fn push(&mut self, message: Incoming) {
        self.bytes += message.bytes();
        self.messages.push(message);
    }

    pub(super) fn is_full(&self, messages_max: usize) -> bool {
        self.messages.len() >= messages_max || self.bytes >= BATCH_BYTES_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

/// A connection that messages are read from.
#[async_trait]
pub(super) trait Source: Send {
    /// The next messages, at most so many; none after a while without any. Dropping the call loses no message for good: what is not
    /// answered for is delivered again.
    async fn next(&mut self, messages_max: usize) -> Result<Batch, BridgeError>;

    /// Answers the broker for a batch that is committed.
    async fn done(&mut self, batch: &Batch) -> Result<(), SinkError>;

    /// Ends the connection; the broker keeps what it was not answered for.
    async fn close(self: Box<Self>);
}

/// What a URL names.
pub(super) enum From {
    #[cfg(feature = "kafka")]
    Kafka(super::kafka::FromKafka),
    #[cfg(feature = "rabbitmq")]
    RabbitMq(super::rabbitmq::FromRabbitMq),
    #[cfg(feature = "nats")]
    Nats(super::nats::FromNats),
    /// Where no broker is built in, there is nothing to read.
    #[allow(dead_code, reason = "it has no value")]
    Nothing(std::convert::Infallible),
}

impl From {
    pub(super) fn from_url(url: &str) -> Result<Self> {
        match url.split_once("://").map(|(scheme, _)| scheme) {
            #[cfg(feature = "kafka")]
            Some("kafka") => super::kafka::FromKafka::from_url(url).map(From::Kafka),
            #[cfg(feature = "rabbitmq")]
            Some("amqp" | "amqps") => super::rabbitmq::FromRabbitMq::from_url(url).map(From::RabbitMq),
            #[cfg(feature = "nats")]
            Some("nats" | "tls") => super::nats::FromNats::from_url(url).map(From::Nats),
            _ => {
                let rule = "a bridge reads from kafka://, amqp://, amqps://, nats:// or tls://, as far as these are built in";
                Err(Error::invalid("url", rule))
            }
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            #[cfg(feature = "kafka")]
            From::Kafka(_) => "kafka",
            #[cfg(feature = "rabbitmq")]
            From::RabbitMq(_) => "rabbitmq",
            #[cfg(feature = "nats")]
            From::Nats(_) => "nats",
            From::Nothing(nothing) => match *nothing {},
        }
    }

    /// The topic, queue or subject.
    pub(super) fn name(&self) -> &str {
        match self {
            #[cfg(feature = "kafka")]
            From::Kafka(from) => &from.topic,
            #[cfg(feature = "rabbitmq")]
            From::RabbitMq(from) => &from.queue,
            #[cfg(feature = "nats")]
            From::Nats(from) => &from.subject,
            From::Nothing(nothing) => match *nothing {},
        }
    }

    /// Where that is, without a password.
    pub(super) fn place(&self) -> &str {
        match self {
            #[cfg(feature = "kafka")]
            From::Kafka(from) => &from.place,
            #[cfg(feature = "rabbitmq")]
            From::RabbitMq(from) => &from.server.place,
            #[cfg(feature = "nats")]
            From::Nats(from) => &from.server.place,
            From::Nothing(nothing) => match *nothing {},
        }
    }

    pub(super) async fn open(&self, bridge: &Bridge) -> Result<Box<dyn Source>, BridgeError> {
        match self {
            #[cfg(feature = "kafka")]
            From::Kafka(from) => Ok(Box::new(from.open(bridge).await?)),
            #[cfg(feature = "rabbitmq")]
            From::RabbitMq(from) => Ok(Box::new(from.open(bridge).await?)),
            #[cfg(feature = "nats")]
            From::Nats(from) => Ok(Box::new(from.open(bridge).await?)),
            From::Nothing(nothing) => match *nothing {},
        }
    }
}

/// The option for where a bridge begins the first time.
#[cfg(any(feature = "kafka", feature = "nats"))]
pub(super) fn is_latest(start: Option<&str>) -> Result<bool> {
    match start {
        None | Some("earliest") => Ok(false),
        Some("latest") => Ok(true),
        Some(other) => {
            Err(Error::invalid("url", format!("start={other}: must be earliest, the default, or latest")))
        }
    }
}
