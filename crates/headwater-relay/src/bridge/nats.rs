//! Reads a stream of NATS JetStream, through a durable consumer of its own.

use std::time::Duration;

use async_nats::jetstream::consumer::pull::{self, MessagesErrorKind};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy};
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::message::Message;
use async_trait::async_trait;
use futures_util::StreamExt;
use headwater::{Error, NewMessage, Result};
use tokio::time::{Instant, timeout, timeout_at};

use super::incoming::Incoming;
use super::source::{Batch, IDLE, LINGER, Source, is_latest};
use super::{Bridge, BridgeError};
use crate::nats::server::{Server, Session};
use crate::nats::text_of;
use crate::sink::SinkError;

/// After how long without an answer the server delivers a message again: to a bridge that was killed, its next process gets them so much later.
const ACK_WAIT: Duration = Duration::from_secs(30);
/// The header with the id that a publisher gave a message.
const MESSAGE_ID: &str = "Nats-Msg-Id";

/// A subject, which may have wildcards.
pub(super) struct FromNats {
    pub(super) server: Server,
    pub(super) subject: String,
    stream: Option<String>,
    from_latest: bool,
    ack_wait: Duration,
}

impl FromNats {
    pub(super) fn from_url(url: &str) -> Result<Self> {
        let (server, mut url) = Server::from_url(url)?;
        let (stream, start, ack_wait) = (url.take("stream"), url.take("start"), url.take("ack_wait_ms"));
        url.finish("stream, start, ack_wait_ms")?;
        let rule =
            || Error::invalid("url", "a bridge from NATS reads a subject; name it as nats://host/subject");
        let subject = url.path.take().ok_or_else(rule)?;
        if !subject.split('.').all(|word| !word.is_empty() && !word.contains(char::is_whitespace)) {
            let rule = format!("subject {subject:?}: must be words with dots between them, without spaces");
            return Err(Error::invalid("url", rule));
        }
        let from_latest = is_latest(start.as_deref())?;
        let ack_wait = match ack_wait.as_deref().map(str::parse::<u64>) {
            None => ACK_WAIT,
            Some(Ok(ms @ 100..=3_600_000)) => Duration::from_millis(ms),
            Some(_) => {
                return Err(Error::invalid("url", "ack_wait_ms must be a number from 100 to 3600000"));
            }
        };
        Ok(FromNats { server, subject, stream, from_latest, ack_wait })
    }

    pub(super) async fn open(&self, bridge: &Bridge) -> Result<FromStream, SinkError> {
        let session = self.server.connect(&format!("headwater bridge {}", bridge.name)).await?;
        let opened = session.unless_troubled(self.consume(&session, bridge)).await?;
        let (epoch, messages) = opened;
        Ok(FromStream { place: self.server.place.clone(), session, epoch, messages, unanswered: Vec::new() })
    }

    async fn consume(&self, session: &Session, bridge: &Bridge) -> Result<(i128, pull::Stream), SinkError> {
        let place = &self.server.place;
        let name = match &self.stream {
            Some(name) => name.clone(),
            None => self.server.stream_of(session, &self.subject).await?,
        };
        let unavailable = |doing: &str, error: &dyn std::error::Error| {
            SinkError::Unavailable(format!("{place}: {doing} of stream {name}: {}", text_of(error)))
        };
        let stream = session.context.get_stream(&name).await.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(_)
            | GetStreamErrorKind::InvalidStreamName
            | GetStreamErrorKind::EmptyName => SinkError::Misconfigured(format!(
                "{place} has no stream {name}; create it, or name another in the URL (stream=)"
            )),
            _ => unavailable("reading", &error),
        })?;
        let durable = consumer_name(&bridge.name);
        let in_flight = bridge.batch_messages * 2;
        let config = pull::Config {
            durable_name: Some(durable.clone()),
            description: Some(format!("headwater bridge {} into topic {}", bridge.name, bridge.topic)),
            deliver_policy: if self.from_latest { DeliverPolicy::New } else { DeliverPolicy::All },
            // Each by itself: other processes with this bridge share the consumer.
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.ack_wait,
            max_ack_pending: i64::try_from(in_flight).unwrap_or(i64::MAX),
            filter_subject: self.subject.clone(),
            ..pull::Config::default()
        };
        let consumer = stream.get_or_create_consumer(&durable, config).await.map_err(|error| {
            let text = text_of(&error);
            SinkError::Misconfigured(format!(
                "{place} refuses consumer {durable} of stream {name}: {text}; grant the right, or name the bridge otherwise"
            ))
        })?;
        let filter = &consumer.cached_info().config.filter_subject;
        if *filter != self.subject {
            return Err(SinkError::Misconfigured(format!(
                "{place}: consumer {durable} of stream {name} reads {filter}, not {}; name the bridge otherwise",
                self.subject
            )));
        }
        let messages = consumer
            .stream()
            .max_messages_per_batch(in_flight)
            .expires(Duration::from_secs(30))
            .heartbeat(Duration::from_secs(5))
            .messages();
        let messages = messages.await.map_err(|error| unavailable("consuming", &error))?;
        // A stream that is deleted and created again counts from 1 again: its messages are others.
        Ok((stream.cached_info().created.unix_timestamp_nanos(), messages))
    }
}

/// A connection that consumes a stream.
pub(super) struct FromStream {
    place: String,
    session: Session,
    /// When the stream was created, in nanoseconds.
    epoch: i128,
    messages: pull::Stream,
    /// What was read and is not answered for.
    unanswered: Vec<Message>,
}

impl FromStream {
    fn read_next(
        &mut self,
        next: Option<Result<Message, pull::MessagesError>>,
    ) -> Result<Incoming, SinkError> {
        match next {
            Some(Ok(message)) => {
                let incoming = incoming(self.epoch, &message)
                    .map_err(|error| SinkError::Unavailable(format!("{}: {error}", self.place)))?;
                self.unanswered.push(message);
                Ok(incoming)
            }
            Some(Err(error)) => {
                let text = format!("{}: {}", self.place, text_of(&error));
                Err(match error.kind() {
                    MessagesErrorKind::ConsumerDeleted => {
                        SinkError::Unavailable(format!("{text}: the consumer was deleted"))
                    }
                    _ => SinkError::Unavailable(text),
                })
            }
            None => Err(SinkError::Unavailable(format!("{} ended the stream", self.place))),
        }
    }
}

#[async_trait]
impl Source for FromStream {
    async fn next(&mut self, messages_max: usize) -> Result<Batch, BridgeError> {
        let mut batch = Batch::default();
        self.unanswered.clear();
        if let Some(trouble) = self.session.trouble() {
            return Err(trouble.into());
        }
        let Ok(first) = timeout(IDLE, self.messages.next()).await else { return Ok(batch) };
        batch.push(self.read_next(first)?);
        let linger = Instant::now() + LINGER;
        while !batch.is_full(messages_max) {
            let Ok(next) = timeout_at(linger, self.messages.next()).await else { break };
            batch.push(self.read_next(next)?);
        }
        Ok(batch)
    }

    async fn done(&mut self, _batch: &Batch) -> Result<(), SinkError> {
        let (place, unanswered) = (&self.place, std::mem::take(&mut self.unanswered));
        let acked = async {
            for message in unanswered {
                message.ack().await.map_err(|error| SinkError::Unavailable(format!("{place}: {error}")))?;
            }
            Ok(())
        };
        self.session.unless_troubled(acked).await
    }

    async fn close(self: Box<Self>) {
        // The acks are sent before the connection ends.
        self.session.close().await;
    }
}

/// Names of consumers have no dots, spaces and wildcards. What is replaced is made up for by a hash of the name.
fn consumer_name(bridge: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if bridge.chars().all(is_plain) {
        return format!("headwater-{bridge}");
    }
    let plain: String = bridge.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    // FNV-1a: stable in every version and on every machine.
    let hash = bridge.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("headwater-{plain}-{hash:016x}")
}

fn incoming(epoch: i128, message: &Message) -> Result<Incoming, String> {
    let info = message.info().map_err(|error| format!("message without its place in the stream: {error}"))?;
    let place = format!("{}@{epoch}/{}", info.stream, info.stream_sequence);
    let origin =
        format!("stream {}, sequence {}, subject {}", info.stream, info.stream_sequence, message.subject);
    let mut incoming = Incoming::new(origin, NewMessage::new(message.payload.clone()));
    let mut given = None;
    for (name, values) in message.headers.iter().flat_map(async_nats::HeaderMap::iter) {
        let name: &str = name.as_ref();
        let text = values.iter().map(async_nats::HeaderValue::as_str).collect::<Vec<_>>().join(", ");
        if name.eq_ignore_ascii_case(MESSAGE_ID) {
            given = Some(text);
        } else if !name.to_ascii_lowercase().starts_with("nats-") {
            // What begins with Nats- was meant for the server.
            incoming.header(name, Ok(text));
        }
    }
    let given = given.filter(|id| (1..=255).contains(&id.len()) && !id.contains('\0'));
    incoming.identified(given.as_deref());
    incoming.id = Some(given.unwrap_or(place));
    incoming.fields_from_headers();
    let at = i64::try_from(info.published.unix_timestamp_nanos() / 1_000).ok();
    incoming.created_at(at.and_then(|us| jiff::Timestamp::from_microsecond(us).ok()));
    Ok(incoming.checked())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_consumers_are_plain_and_distinct() {
        assert_eq!(consumer_name("orders-in"), "headwater-orders-in");
        let (one, other) = (consumer_name("nats:a.b:t"), consumer_name("nats:a_b:t"));
        assert!(one.starts_with("headwater-nats_a_b_t-") && one != other, "{one} {other}");
    }
}
