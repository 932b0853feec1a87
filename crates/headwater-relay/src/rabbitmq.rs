//! RabbitMQ, and other brokers of AMQP 0.9.1: publisher confirms, mandatory, persistent.
//!
//! # What a confirmation promises
//! A record is `Delivered` once the broker has confirmed it and has not returned it: it is in every queue it was routed to, on disk if
//! the queue is durable. A batch is published as a whole and then all confirmations are awaited, so it costs about one round trip.
//! The connection is used by one call at a time and put back only after a success: after any other end it is closed, and
//! what was in flight on it is not sent later.
//!
//! # Unroutable records
//! The broker returns a mandatory record that no queue gets, and confirms it. If it returns every record of a call, the destination itself is
//! missing: the call is [`SinkError::Misconfigured`], which costs no record an attempt. If it returns only some, their own routing is wrong:
//! these are [`Delivery::Failed`], and the others are delivered.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use headwater::{Error, Result};
use lapin::options::{BasicPublishOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Confirmation, ErrorKind, ExchangeKind, PublisherConfirm};

mod properties;
pub(crate) mod server;

use properties::{header_bytes, properties};
use server::{CONNECT_TIMEOUT, Server, Session, close, while_connected};

use crate::sink::{Delivery, Record, Sink, SinkError};

/// The header with the key of a message.
pub const KEY_HEADER: &str = "headwater-key";

/// The longest wait for the confirmations of a batch: a broker that is short of memory or disk accepts nothing meanwhile.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(30);
/// Routing keys, names and ids of AMQP are short strings.
const SHORT_BYTES_MAX: usize = 255;

/// A sink that publishes to a queue or an exchange of RabbitMQ.
///
/// ```no_run
/// # fn make() -> headwater::Result<()> {
/// use headwater_relay::rabbitmq::RabbitMqSink;
///
/// // The queue orders, through the default exchange. Without it: the queue that has the name of the record's destination.
/// let queue = RabbitMqSink::from_url("amqp://relay:secret@rabbit:5672/%2F?queue=orders")?;
/// // The exchange events; the routing key is the record's destination, or ?routing_key=.
/// let exchange = RabbitMqSink::from_url("amqps://relay:secret@rabbit/shop?exchange=events")?;
/// # let _ = (queue, exchange); Ok(()) }
/// ```
pub struct RabbitMqSink {
    server: Server,
    exchange: String,
    /// `None` for the destination of each record.
    routing_key: Option<String>,
    /// The connection while no call uses it.
    idle: Mutex<Option<Session>>,
    /// The largest payload that the broker accepts, once it has refused a larger one.
    payload_bytes_max: AtomicUsize,
}

/// Why a batch was not published.
enum Fault {
    /// The broker refuses payloads above so many bytes.
    TooLarge(usize),
    Sink(SinkError),
}

impl From<SinkError> for Fault {
    fn from(error: SinkError) -> Self {
        Fault::Sink(error)
    }
}

/// What became of a record once it was sent.
enum Sent {
    Refused(String),
    Waiting(PublisherConfirm),
}

impl RabbitMqSink {
    /// A sink for `amqp://user:password@host:port/vhost?queue=…` or `?exchange=…&routing_key=…`; `amqps` for TLS. Nothing is connected yet.
    ///
    /// The virtual host is `/` if the path is empty. Without a queue, exchange or routing key a record's own destination is the queue.
    pub fn from_url(url: &str) -> Result<Self> {
        let (server, mut url) = Server::from_url(url)?;
        let (queue, exchange, key) = (url.take("queue"), url.take("exchange"), url.take("routing_key"));
        url.finish("queue, exchange, routing_key, heartbeat, frame_max")?;
        if queue.is_some() && (exchange.is_some() || key.is_some()) {
            let rule = "queue beside exchange or routing_key: a queue is reached through the default exchange; set one of them";
            return Err(Error::invalid("url", rule));
        }
        for (option, value) in [("queue", &queue), ("exchange", &exchange), ("routing_key", &key)] {
            let bytes = value.as_deref().map_or(0, str::len);
            if bytes > SHORT_BYTES_MAX {
                let rule = format!("{option}: {bytes} bytes, at most {SHORT_BYTES_MAX} are allowed");
                return Err(Error::invalid("url", rule));
            }
        }
        Ok(RabbitMqSink {
            server,
            exchange: exchange.unwrap_or_default(),
            routing_key: queue.or(key),
            idle: Mutex::new(None),
            payload_bytes_max: AtomicUsize::new(usize::MAX),
        })
    }

    /// The idle connection, or a new one.
    async fn session(&self) -> Result<Session, SinkError> {
        let idle = self.idle.lock().expect("no panic while held").take();
        match idle {
            Some(session) if session.channel.status().connected() => Ok(session),
            _ => self.server.open_session().await,
        }
    }

    fn put_back(&self, session: Session) {
        *self.idle.lock().expect("no panic while held") = Some(session);
    }

    async fn publish(&self, session: &Session, records: &[Record]) -> Result<Vec<Confirmed>, Fault> {
        let mut sent = Vec::with_capacity(records.len());
        for record in records {
            sent.push(match self.prepared(session, record) {
                Ok((routing_key, properties)) => {
                    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
                    let exchange = ShortString::from(self.exchange.as_str());
                    let published = session.channel.basic_publish(
                        exchange,
                        routing_key,
                        options,
                        &record.payload,
                        properties,
                    );
                    Sent::Waiting(published.await.map_err(|error| self.fault(&error))?)
                }
                Err(reason) => Sent::Refused(reason),
            });
        }
        let mut confirmed = Vec::with_capacity(sent.len());
        for sent in sent {
            confirmed.push(match sent {
                Sent::Refused(reason) => Confirmed::As(Delivery::Refused { reason }),
                Sent::Waiting(confirm) => match confirm.await.map_err(|error| self.fault(&error))? {
                    Confirmation::Ack(None) => Confirmed::As(Delivery::Delivered),
                    Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => Confirmed::Returned,
                    Confirmation::Nack(None) | Confirmation::NotRequested => {
                        let reason = format!("{} did not store the message", self.server.place);
                        Confirmed::As(Delivery::Failed { reason, retry_after: None })
                    }
                },
            });
        }
        Ok(confirmed)
    }

    /// The routing key and properties of a record, or why the broker can never take it.
    fn prepared(&self, session: &Session, record: &Record) -> Result<(ShortString, BasicProperties), String> {
        let (bytes, most) = (record.payload.len(), self.payload_bytes_max.load(Ordering::Relaxed));
        if bytes > most {
            return Err(format!(
                "payload of {bytes} bytes, {} accepts {most}; raise its max_message_size, or store the payload elsewhere",
                self.server.place
            ));
        }
        let routing_key = self.routing_key.as_ref().unwrap_or(&record.destination);
        let short = |field: &str, value: &str| {
            ShortString::try_new(value).map_err(|error| format!("{field} does not fit AMQP: {error}"))
        };
        let properties = properties(record)?;
        // The properties of a message cannot be split into frames: with a larger frame the broker closes the connection.
        let frame_max = session.connection.configuration().frame_max() as usize;
        let bytes = header_bytes(record);
        if frame_max > 0 && bytes > frame_max {
            return Err(format!(
                "headers of {bytes} bytes do not fit a frame of {}, which has {frame_max}; send fewer, or raise frame_max of broker and URL",
                self.server.place
            ));
        }
        Ok((short("routing key", routing_key)?, properties))
    }

    /// A channel that the broker closed because of the size of a payload says which size it accepts.
    fn fault(&self, error: &lapin::Error) -> Fault {
        if let ErrorKind::ProtocolError(protocol) = error.kind()
            && let Some(most) = size_limit(protocol.get_message().as_str())
        {
            return Fault::TooLarge(most);
        }
        Fault::Sink(self.server.sink_error(error, &self.named()))
    }

    /// The destination, for errors.
    fn named(&self) -> String {
        match (self.exchange.as_str(), &self.routing_key) {
            ("", Some(queue)) => format!("queue {queue}"),
            ("", None) => "the default exchange".to_owned(),
            (exchange, _) => format!("exchange {exchange}"),
        }
    }

    fn unroutable(&self, record: &Record) -> String {
        let place = &self.server.place;
        let key = self.routing_key.as_ref().unwrap_or(&record.destination);
        match self.exchange.as_str() {
            "" => format!(
                "{place} has no queue {key}; declare it, durable, or name another in the URL (queue=)"
            ),
            exchange => format!(
                "{place}: no queue is bound to exchange {exchange} for routing key {key}; bind one, or name another exchange or routing key in the URL"
            ),
        }
    }
}

/// What the broker said of a record.
enum Confirmed {
    As(Delivery),
    Returned,
}

#[async_trait]
impl Sink for RabbitMqSink {
    fn kind(&self) -> &'static str {
        "rabbitmq"
    }

    async fn deliver(&self, records: &[Record]) -> Result<Vec<Delivery>, SinkError> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        // A broker reveals its limit by refusing a payload: then the rest of the batch is sent again at once, without that one.
        for _ in 0..2 {
            let session = self.session().await?;
            let published = self.publish(&session, records);
            match while_connected(&self.server, &session.connection, CONFIRM_TIMEOUT, published).await? {
                Ok(confirmed) => {
                    self.put_back(session);
                    if confirmed.iter().all(|one| matches!(one, Confirmed::Returned)) {
                        return Err(SinkError::Misconfigured(self.unroutable(&records[0])));
                    }
                    let deliveries = confirmed.into_iter().zip(records).map(|(one, record)| match one {
                        Confirmed::As(delivery) => delivery,
                        Confirmed::Returned => {
                            Delivery::Failed { reason: self.unroutable(record), retry_after: None }
                        }
                    });
                    return Ok(deliveries.collect());
                }
                Err(Fault::TooLarge(most)) => self.payload_bytes_max.store(most, Ordering::Relaxed),
                Err(Fault::Sink(error)) => return Err(error),
            }
        }
        Err(SinkError::Unavailable(format!("{} keeps changing its max_message_size", self.server.place)))
    }

    async fn check(&self) -> Result<(), SinkError> {
        let session = self.session().await?;
        let channel = &session.channel;
        let checked = async {
            match (self.exchange.as_str(), &self.routing_key) {
                ("", Some(queue)) => {
                    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
                    channel
                        .queue_declare(queue.as_str().into(), options, FieldTable::default())
                        .await
                        .map(drop)
                }
                ("", None) => Ok(()),
                (exchange, _) => {
                    let options =
                        ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
                    // The kind of an exchange that is only checked does not count.
                    let kind = ExchangeKind::Direct;
                    channel.exchange_declare(exchange.into(), kind, options, FieldTable::default()).await
                }
            }
        };
        while_connected(&self.server, &session.connection, CONNECT_TIMEOUT, checked)
            .await?
            .map_err(|error| self.server.sink_error(&error, &self.named()))?;
        self.put_back(session);
        Ok(())
    }

    async fn close(&self) {
        let idle = self.idle.lock().expect("no panic while held").take();
        if let Some(session) = idle {
            close(&session.connection).await;
        }
    }
}

impl fmt::Debug for RabbitMqSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqSink")
            .field("place", &self.server.place)
            .field("exchange", &self.exchange)
            .field("routing_key", &self.routing_key)
            .finish_non_exhaustive()
    }
}

/// The limit in "message size 200 is larger than configured max size 100".
fn size_limit(said: &str) -> Option<usize> {
    let (_, rest) = said.split_once("larger than")?;
    let digits = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_queue_or_an_exchange() {
        let sink = RabbitMqSink::from_url("amqp://u:secret@h/shop?queue=orders").unwrap();
        assert_eq!((sink.exchange.as_str(), sink.routing_key.as_deref()), ("", Some("orders")));
        assert_eq!(sink.server.place, "amqp://h:5672/shop");
        assert!(!format!("{sink:?}").contains("secret"));
        let sink = RabbitMqSink::from_url("amqps://h?exchange=events&routing_key=a.b").unwrap();
        assert_eq!((sink.exchange.as_str(), sink.routing_key.as_deref()), ("events", Some("a.b")));
        assert_eq!(sink.server.place, "amqps://h:5671/");
        for (url, says) in [
            ("amqp://h?queue=a&exchange=b", "queue beside exchange"),
            ("amqp://h?topic=a", "unknown option topic"),
            ("amqp://h,i", "several hosts"),
            ("amqp://h?heartbeat=x", "heartbeat must be a number"),
        ] {
            let error = RabbitMqSink::from_url(url).unwrap_err();
            assert_eq!(error.kind(), headwater::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn a_limit_is_read_from_what_the_broker_says() {
        let said = "PRECONDITION_FAILED - message size 200 is larger than configured max size 100";
        assert_eq!(size_limit(said), Some(100));
        let older = "PRECONDITION_FAILED - message size 2000 larger than max size 1000";
        assert_eq!(size_limit(older), Some(1000));
        assert_eq!(size_limit("NOT_FOUND - no exchange 'x' in vhost '/'"), None);
    }
}
