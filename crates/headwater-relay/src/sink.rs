//! A sink: where records are delivered.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use headwater::Headers;
use jiff::Timestamp;

/// One record for a sink: a message of a topic, or an entry of the outbox.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The identity that the receiver's inbox removes duplicates by: the message's id, or `outbox-` and the entry's id.
    pub message_id: String,
    /// The name at the sink: a Kafka topic, a queue or routing key, a subject, a Headwater topic.
    pub destination: String,
    /// What records are ordered by.
    pub key: Option<String>,
    /// The type of the message.
    pub message_type: Option<String>,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// Links messages of one conversation.
    pub correlation_id: Option<String>,
    /// Further data, as strings.
    pub headers: Headers,
    /// The bytes.
    pub payload: Bytes,
    /// When it was published, by the database's clock.
    pub created_at: Timestamp,
}

/// What became of one record.
#[derive(Clone, Debug, PartialEq)]
pub enum Delivery {
    /// The sink has confirmed it, durably.
    Delivered,
    /// The sink did not confirm it; another attempt may succeed. It may have arrived.
    Failed {
        /// Why, for the last error of the message or entry.
        reason: String,
        /// How long the sink asked to wait.
        retry_after: Option<Duration>,
    },
    /// The sink became unreachable before it confirmed this record, and others of the call were confirmed. It is sent again once the
    /// sink answers, which costs no attempt; the others are not. It may have arrived.
    Unconfirmed {
        /// Why, for the outage of the relay.
        reason: String,
    },
    /// The sink will never accept this record: it is given up without further attempts.
    Refused {
        /// Why and what to do, for the dead letter.
        reason: String,
    },
}

/// Why a sink as a whole cannot be used now: every record of the call may have arrived or not.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SinkError {
    /// It cannot be reached or does not answer: attempts are repeated with a back-off, and cost no record an attempt.
    #[error("{0}")]
    Unavailable(String),
    /// It answers, and refuses the relay itself: wrong credentials, a missing topic. Nothing changes before an operator acts, so the
    /// relay reports it as an error, and tries again at its slowest pace.
    #[error("{0}")]
    Misconfigured(String),
}

/// A destination of records.
///
/// # Order per key
/// `deliver` is called for one batch at a time, or for as many as [`calls_at_once`](Sink::calls_at_once) says, no two of which have records
/// of the same key. A sink whose [`keeps_order`](Sink::keeps_order) is true must not let a later record of a
/// key be delivered once an earlier one of the same call has failed. Other sinks get at most one record of a key per call from a
/// relay that keeps the order.
#[async_trait]
pub trait Sink: Send + Sync {
    /// The kind, for logs and metrics: `kafka`, `rabbitmq`, `nats`, `webhook`, `headwater`.
    fn kind(&self) -> &'static str;

    /// Whether the records of a key are delivered in the order of the batch, failures included.
    fn keeps_order(&self) -> bool {
        false
    }

    /// How many calls of `deliver` may overlap; each has all records that were waiting, so one is enough unless a call mostly waits.
    fn calls_at_once(&self) -> usize {
        1
    }

    /// Delivers a batch and waits for all confirmations: one result per record, in the order of the records.
    async fn deliver(&self, records: &[Record]) -> Result<Vec<Delivery>, SinkError>;

    /// Connects if necessary, and checks that the destination exists and the credentials are accepted; writes nothing.
    async fn check(&self) -> Result<(), SinkError>;

    /// Ends connections; what was confirmed stays.
    async fn close(&self) {}
}
