//! NATS JetStream: each record is acknowledged by its stream, and known to it by its id.
//!
//! # What an acknowledgement promises
//! A record is `Delivered` once its stream has acknowledged it: it is stored. Records are published without waiting for each other, at most
//! [`IN_FLIGHT_MAX`] at a time, and a batch ends when all are acknowledged. The id of a record is its `Nats-Msg-Id`: within
//! the stream's duplicate window (2 minutes unless it is changed) a record that is sent again is acknowledged and not stored again.
//!
//! # Subjects without a stream
//! The server says that no stream answers also while it starts or stops JetStream, or a cluster chooses the leader of a stream. So it is asked
//! for the stream of such a subject. If there is one, the record is [`Delivery::Unconfirmed`]: an outage, which costs it no attempt. If there
//! is none, it is [`Delivery::Failed`], and the others of the call are delivered. If no record of the call was answered, the destination itself
//! is missing or away: the call is [`SinkError::Misconfigured`] or [`SinkError::Unavailable`], which costs no record an attempt either.

use std::collections::{HashMap, VecDeque};
use std::error::Error as _;
use std::fmt;
use std::sync::Mutex;

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue, NATS_MESSAGE_ID};
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{PublishAckFuture, PublishError, PublishErrorKind};
use async_trait::async_trait;
use headwater::{Error, Result};

pub(crate) mod server;

use server::{Server, Session};

use crate::sink::{Delivery, Record, Sink, SinkError};

/// The header with the key of a message.
pub const KEY_HEADER: &str = "headwater-key";
/// The header with the type of a message.
pub const TYPE_HEADER: &str = "headwater-type";
/// The header with the media type of the payload.
pub const CONTENT_TYPE_HEADER: &str = "headwater-content-type";
/// The header with the correlation id.
pub const CORRELATION_ID_HEADER: &str = "headwater-correlation-id";
/// The header with the time of publication, as RFC 3339.
pub const CREATED_AT_HEADER: &str = "headwater-created-at";

/// Most records that wait for their acknowledgement at a time.
pub const IN_FLIGHT_MAX: usize = 1_024;

/// A sink that publishes to a subject of NATS, which a stream of JetStream must store.
///
/// ```no_run
/// # fn make() -> headwater::Result<()> {
/// use headwater_relay::nats::NatsSink;
///
/// let orders = NatsSink::from_url("nats://relay:secret@one:4222,two:4222/shop.orders")?;
/// // The subject is the record's destination.
/// let any = NatsSink::from_url("tls://token@nats.example.com")?;
/// # let _ = (orders, any); Ok(()) }
/// ```
pub struct NatsSink {
    server: Server,
    /// `None` for the destination of each record.
    subject: Option<String>,
    /// The connection while no call uses it.
    idle: Mutex<Option<Session>>,
}

/// What became of a record once it was sent.
enum Sent {
    Refused(String),
    Waiting(PublishAckFuture),
}

/// What the server said of a record.
enum Answered {
    As(Delivery),
    NoStream,
}

impl NatsSink {
    /// A sink for `nats://user:password@host:port/subject`, with `token@` for a token, several hosts of a cluster with commas, and `tls://` for
    /// TLS. Nothing is connected yet.
    pub fn from_url(url: &str) -> Result<Self> {
        let (server, url) = Server::from_url(url)?;
        url.finish("none")?;
        if let Some(subject) = &url.path {
            check_subject(subject).map_err(|rule| Error::invalid("url", rule))?;
        }
        Ok(NatsSink { server, subject: url.path, idle: Mutex::new(None) })
    }

    async fn session(&self) -> Result<Session, SinkError> {
        let idle = self.idle.lock().expect("no panic while held").take();
        match idle {
            Some(session) if session.trouble().is_none() => Ok(session),
            _ => self.server.connect("headwater relay").await,
        }
    }

    fn put_back(&self, session: Session) {
        *self.idle.lock().expect("no panic while held") = Some(session);
    }

    fn subject_of<'r>(&'r self, record: &'r Record) -> &'r str {
        self.subject.as_ref().unwrap_or(&record.destination)
    }

    async fn publish(&self, session: &Session, records: &[Record]) -> Result<Vec<Answered>, SinkError> {
        let mut answered = Vec::with_capacity(records.len());
        let mut sent = VecDeque::with_capacity(records.len().min(IN_FLIGHT_MAX));
        for record in records {
            if sent.len() == IN_FLIGHT_MAX
                && let Some(oldest) = sent.pop_front()
            {
                answered.push(self.answer(oldest).await?);
            }
            sent.push_back(self.send(session, record).await?);
        }
        for oldest in sent {
            answered.push(self.answer(oldest).await?);
        }
        Ok(answered)
    }

    async fn send(&self, session: &Session, record: &Record) -> Result<Sent, SinkError> {
        let subject = self.subject_of(record);
        if let Err(rule) = check_subject(subject) {
            return Ok(Sent::Refused(rule));
        }
        let headers = match headers(record) {
            Ok(headers) => headers,
            Err(reason) => return Ok(Sent::Refused(reason)),
        };
        let published =
            session.context.publish_with_headers(subject.to_owned(), headers, record.payload.clone()).await;
        match published {
            Ok(waiting) => Ok(Sent::Waiting(waiting)),
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                let (bytes, most) = (record.payload.len(), session.client.max_payload());
                Ok(Sent::Refused(format!(
                    "payload of {bytes} bytes and its headers, {} accepts {most}; raise its max_payload, or store the payload elsewhere",
                    self.server.place
                )))
            }
            Err(error) => Err(self.unavailable(&error)),
        }
    }

    async fn answer(&self, sent: Sent) -> Result<Answered, SinkError> {
        let waiting = match sent {
            Sent::Refused(reason) => return Ok(Answered::As(Delivery::Refused { reason })),
            Sent::Waiting(waiting) => waiting,
        };
        let error = match waiting.await {
            // A duplicate is stored already.
            Ok(_) => return Ok(Answered::As(Delivery::Delivered)),
            Err(error) => error,
        };
        let code = error
            .source()
            .and_then(|source| source.downcast_ref::<async_nats::jetstream::Error>())
            .map(async_nats::jetstream::Error::error_code);
        match (error.kind(), code) {
            (PublishErrorKind::StreamNotFound, _) => Ok(Answered::NoStream),
            (
                _,
                Some(ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM),
            ) => {
                let reason = format!(
                    "{}: {}; raise max_msg_size of the stream, or store the payload elsewhere",
                    self.server.place,
                    text_of(&error)
                );
                Ok(Answered::As(Delivery::Refused { reason }))
            }
            (_, Some(ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT)) => {
                Err(SinkError::Misconfigured(format!(
                    "{} has no JetStream for this account; enable it",
                    self.server.place
                )))
            }
            (_, Some(_)) => {
                let reason = format!("{}: {}", self.server.place, text_of(&error));
                Ok(Answered::As(Delivery::Failed { reason, retry_after: None }))
            }
            (_, None) => Err(self.unavailable(&error)),
        }
    }

    fn unavailable(&self, error: &PublishError) -> SinkError {
        SinkError::Unavailable(format!("{}: {}", self.server.place, text_of(error)))
    }

    /// Why no stream answered for a subject.
    async fn no_stream(&self, session: &Session, subject: &str) -> SinkError {
        match session.unless_troubled(self.server.check_stream(session, subject)).await {
            Ok(()) => SinkError::Unavailable(format!(
                "{}: the stream of subject {subject} does not answer",
                self.server.place
            )),
            Err(error) => error,
        }
    }
}

#[async_trait]
impl Sink for NatsSink {
    fn kind(&self) -> &'static str {
        "nats"
    }

    async fn deliver(&self, records: &[Record]) -> Result<Vec<Delivery>, SinkError> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let session = self.session().await?;
        let answered = session.unless_troubled(self.publish(&session, records)).await?;
        if answered.iter().all(|one| matches!(one, Answered::NoStream)) {
            return Err(self.no_stream(&session, self.subject_of(&records[0])).await);
        }
        let mut missing = HashMap::new();
        let mut deliveries = Vec::with_capacity(records.len());
        for (one, record) in answered.into_iter().zip(records) {
            let subject = self.subject_of(record);
            deliveries.push(match one {
                Answered::As(delivery) => delivery,
                Answered::NoStream => {
                    if !missing.contains_key(subject) {
                        missing.insert(subject, self.no_stream(&session, subject).await);
                    }
                    match missing[subject].clone() {
                        SinkError::Unavailable(reason) => Delivery::Unconfirmed { reason },
                        SinkError::Misconfigured(reason) => Delivery::Failed { reason, retry_after: None },
                    }
                }
            });
        }
        self.put_back(session);
        Ok(deliveries)
    }

    async fn check(&self) -> Result<(), SinkError> {
        let session = self.session().await?;
        if let Some(subject) = &self.subject {
            session.unless_troubled(self.server.check_stream(&session, subject)).await?;
        }
        self.put_back(session);
        Ok(())
    }

    async fn close(&self) {
        let idle = self.idle.lock().expect("no panic while held").take();
        if let Some(session) = idle {
            session.close().await;
        }
    }
}

impl fmt::Debug for NatsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSink")
            .field("place", &self.server.place)
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

/// An error with its cause.
pub(crate) fn text_of(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) if !error.to_string().contains(&source.to_string()) => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

/// A subject to publish to: words between dots, without spaces and wildcards.
fn check_subject(subject: &str) -> Result<(), String> {
    let is_word =
        |word: &str| !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c.is_control());
    if subject.split('.').all(|word| is_word(word) && word != "*" && word != ">") {
        return Ok(());
    }
    Err(format!("subject {subject:?}: must be words with dots between them, without spaces and wildcards"))
}

/// The headers of a record, or why NATS cannot carry them.
fn headers(record: &Record) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    let mut insert = |name: HeaderName, value: &str| -> Result<(), String> {
        let trimmed = value.trim() != value;
        let value: Result<HeaderValue, _> = value.parse();
        match value {
            Ok(value) if !trimmed => {
                map.insert(name, value);
                Ok(())
            }
            _ => Err(format!(
                "header {name}: NATS carries no line breaks and no spaces around a value; encode it"
            )),
        }
    };
    for (name, value) in &record.headers {
        // These are commands to the server: one of them empties a stream.
        if name.to_ascii_lowercase().starts_with("nats-") {
            return Err(format!(
                "header {name}: names that begin with Nats- are commands to NATS; rename it"
            ));
        }
        let parsed: Result<HeaderName, _> = name.parse();
        let parsed = parsed.ok().filter(|_| !name.contains(' '));
        let rule =
            || format!("header {name:?}: NATS needs names of ASCII without spaces and colons; rename it");
        insert(parsed.ok_or_else(rule)?, value)?;
    }
    insert(NATS_MESSAGE_ID, &record.message_id)?;
    let created_at = Some(record.created_at.to_string());
    for (name, value) in [
        (KEY_HEADER, &record.key),
        (TYPE_HEADER, &record.message_type),
        (CONTENT_TYPE_HEADER, &record.content_type),
        (CORRELATION_ID_HEADER, &record.correlation_id),
        (CREATED_AT_HEADER, &created_at),
    ] {
        if let Some(value) = value {
            insert(HeaderName::from_static(name), value)?;
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_subject() {
        let sink = NatsSink::from_url("nats://u:secret@one,two:1/shop.orders").unwrap();
        assert_eq!(
            (sink.server.place.as_str(), sink.subject.as_deref()),
            ("nats://one:4222,two:1", Some("shop.orders"))
        );
        assert!(!format!("{sink:?}").contains("secret"));
        for (url, says) in [
            ("nats://h/a..b", "subject"),
            ("nats://h/a.*", "subject"),
            ("nats://h/a%20b", "subject"),
            ("nats://h/a?stream=b", "unknown option stream"),
            ("http://h/a", "nats:// or tls://"),
        ] {
            let error = NatsSink::from_url(url).unwrap_err();
            assert_eq!(error.kind(), headwater::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn headers_that_nats_cannot_carry_are_refused() {
        let record = |name: &str, value: &str| Record {
            message_id: "m-1".into(),
            destination: "d".into(),
            key: Some("k".into()),
            message_type: None,
            content_type: None,
            correlation_id: None,
            headers: [(name.to_owned(), value.to_owned())].into(),
            payload: "p".into(),
            created_at: jiff::Timestamp::UNIX_EPOCH,
        };
        let map = headers(&record("a", "größe")).unwrap();
        let read = |name: &str| map.get(name).map(ToString::to_string);
        assert_eq!((read("a"), read("Nats-Msg-Id")), (Some("größe".into()), Some("m-1".into())));
        assert_eq!(read("headwater-created-at").as_deref(), Some("1970-01-01T00:00:00Z"));
        for (name, value) in
            [("a:b", "v"), ("ä", "v"), ("a b", "v"), ("a", "x\ny"), ("a", " x"), ("Nats-Rollup", "all")]
        {
            let reason = headers(&record(name, value)).unwrap_err();
            assert!(reason.contains("header"), "{reason}");
        }
    }
}
