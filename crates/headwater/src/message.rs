//! Messages: what a publisher hands in, and what a consumer gets.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::limits::{
    DELAY_MAX, HEADER_VALUE_BYTES_MAX, HEADERS_MAX, PAYLOAD_BYTES_MAX, PUBLISH_BYTES_MAX,
    PUBLISH_MESSAGES_MAX,
};
use crate::name::check_name;
use crate::observe::trace::TraceContext;

/// A message's number in its topic: 1 or more, rising, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(pub i64);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The header with how long a message may wait before it is handled, in milliseconds since it entered the log. Relative to
/// [`Message::created_at`], which is a time of the database: the publisher's clock has no part in it, and plain SQL can
/// set it as any other header.
const EXPIRES_IN_MS: &str = "headwater-expires-in-ms";

/// String headers, sorted by name.
pub type Headers = BTreeMap<String, String>;

/// A message to publish.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewMessage {
    /// Identity for the receiver's inbox; a UUIDv7 is generated if absent.
    pub message_id: Option<Uuid>,
    /// What messages are ordered and routed by.
    pub key: Option<String>,
    /// The type of the message, for the receiver.
    pub message_type: Option<String>,
    /// The bytes.
    pub payload: Bytes,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// Further data, as strings.
    pub headers: Headers,
    /// Links messages of one conversation.
    pub correlation_id: Option<String>,
    /// A repeat of the same key within the topic's window is not stored and returns the first offset.
    pub dedup_key: Option<String>,
    /// The earliest time of delivery; `None` for at once.
    pub deliver_at: Option<Timestamp>,
    /// How long after it is published, by the database's clock, it is delivered at the earliest. Not beside `deliver_at`.
    pub delay: Option<Duration>,
}

impl NewMessage {
    /// A message of plain bytes.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        NewMessage { payload: payload.into(), ..NewMessage::default() }
    }

    /// A message of JSON, with its content type set.
    pub fn json<T: serde::Serialize + ?Sized>(value: &T) -> Result<Self> {
        let payload = serde_json::to_vec(value)
            .map_err(|error| Error::invalid("payload", format!("not serializable as JSON: {error}")))?;
        Ok(NewMessage::new(payload).content_type("application/json"))
    }

    /// Sets the message id.
    #[must_use]
    pub fn message_id(mut self, id: Uuid) -> Self {
        self.message_id = Some(id);
        self
    }

    /// Sets the key: text, a number, an id, or whatever else can be displayed.
    #[must_use]
    pub fn key(mut self, key: impl fmt::Display) -> Self {
        self.key = Some(key.to_string());
        self
    }

    /// Sets the type.
    #[must_use]
    pub fn message_type(mut self, message_type: impl Into<String>) -> Self {
        self.message_type = Some(message_type.into());
        self
    }

    /// Sets the media type of the payload.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Sets the correlation id.
    #[must_use]
    pub fn correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// Makes the publish idempotent within the topic's dedup window.
    #[must_use]
    pub fn dedup_key(mut self, key: impl Into<String>) -> Self {
        self.dedup_key = Some(key.into());
        self
    }

    /// Schedules the message: it is not delivered before this time. Replaces a delay.
    #[must_use]
    pub fn deliver_at(mut self, at: Timestamp) -> Self {
        (self.deliver_at, self.delay) = (Some(at), None);
        self
    }

    /// Schedules the message: it is not delivered before this much time has passed since it was published, by the
    /// database's clock and not by this machine's. Replaces a time of delivery.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        (self.deliver_at, self.delay) = (None, Some(delay));
        self
    }

    /// Lets it expire if it is not handled within this time, as the header `headwater-expires-in-ms`: consumers then skip and
    /// count it, and ack it. The time begins when it is published, or when a scheduled message is due, by the database's
    /// clock.
    #[must_use]
    pub fn expires_in(self, within: Duration) -> Self {
        self.header(EXPIRES_IN_MS, within.as_nanos().div_ceil(1_000_000).to_string())
    }

    /// Gives it this trace context, unless it has one. Without it a message gets the one of the task or span that publishes
    /// it.
    #[must_use]
    pub fn traced(mut self, context: &TraceContext) -> Self {
        context.inject(&mut self);
        self
    }

    /// Checks every field against its rule. The topic's own payload limit is checked by the store.
    pub fn validate(&self) -> Result<()> {
        let texts = [
            ("key", &self.key),
            ("type", &self.message_type),
            ("content_type", &self.content_type),
            ("correlation_id", &self.correlation_id),
            ("dedup_key", &self.dedup_key),
        ];
        for (field, value) in texts {
            if let Some(value) = value {
                check_name(field, value)?;
            }
        }
        if let Some(delay) = self.delay {
            if self.deliver_at.is_some() {
                return Err(Error::invalid("delay", "deliver_at is set as well; set one of the two"));
            }
            if delay > DELAY_MAX {
                return Err(Error::invalid("delay", "longer than 366 days"));
            }
        }
        if self.payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Error::payload_too_large("of any kind", self.payload.len(), PAYLOAD_BYTES_MAX));
        }
        check_headers(&self.headers)
    }

    /// The headers as the JSON object the engines store; `None` when there are none.
    pub(crate) fn headers_json(&self) -> Option<String> {
        if self.headers.is_empty() {
            return None;
        }
        Some(serde_json::to_string(&self.headers).expect("a map of strings is always JSON"))
    }
}

/// Checks headers: how many, their names and their values.
pub(crate) fn check_headers(headers: &Headers) -> Result<()> {
    if headers.len() > HEADERS_MAX {
        let count = headers.len();
        return Err(Error::invalid("headers", format!("{count} headers, at most {HEADERS_MAX} are allowed")));
    }
    for (name, value) in headers {
        check_name("header name", name)?;
        if value.len() > HEADER_VALUE_BYTES_MAX || value.contains('\0') {
            let rule = format!("header {name} must be at most {HEADER_VALUE_BYTES_MAX} bytes without NUL");
            return Err(Error::invalid("header value", rule));
        }
    }
    Ok(())
}

/// Checks a whole publish call before anything is written: all or nothing.
pub(crate) fn validate_batch(messages: &[NewMessage]) -> Result<()> {
    if messages.len() > PUBLISH_MESSAGES_MAX {
        let count = messages.len();
        return Err(Error::invalid(
            "messages",
            format!("{count} in one publish, at most {PUBLISH_MESSAGES_MAX} are allowed; split the batch"),
        ));
    }
    let bytes: usize = messages.iter().map(|message| message.payload.len()).sum();
    if bytes > PUBLISH_BYTES_MAX {
        return Err(Error::invalid(
            "messages",
            format!(
                "{bytes} payload bytes in one publish, at most {PUBLISH_BYTES_MAX} are allowed; split the batch"
            ),
        ));
    }
    messages.iter().try_for_each(NewMessage::validate)
}

/// A stored message, as delivered.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Its number in the topic.
    pub offset: Offset,
    /// Its identity.
    pub message_id: Uuid,
    /// Its key, if it has one.
    pub key: Option<String>,
    /// Its type, if it has one.
    pub message_type: Option<String>,
    /// The bytes.
    pub payload: Bytes,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// Headers.
    pub headers: Headers,
    /// Links messages of one conversation.
    pub correlation_id: Option<String>,
    /// When it was published, by the database's clock.
    pub created_at: Timestamp,
}

impl Message {
    /// A stable hash of the key, or of the id without a key: the same on every engine, version and client.
    pub fn key_hash(&self) -> u64 {
        key_hash_of(self.key.as_deref(), self.message_id)
    }

    /// The lane of this message among `lanes`: by its key, or by its id without a key.
    pub fn lane(&self, lanes: u16) -> u16 {
        lane_of(self.key.as_deref(), self.message_id, lanes)
    }

    /// When it expires, if it does: see [`NewMessage::expires_in`]. A header that is not a number of milliseconds means
    /// never.
    pub fn expires_at(&self) -> Option<Timestamp> {
        // Almost no message has headers.
        let within_ms: u64 = self.headers.get(EXPIRES_IN_MS)?.parse().ok()?;
        self.created_at.checked_add(Duration::from_millis(within_ms)).ok()
    }

    /// Its approximate size in memory, in bytes; the limits of buffers count it.
    pub fn weight(&self) -> usize {
        MESSAGE_BYTES + self.payload.len() + weight_of_headers(&self.headers)
    }
}

/// Approximate bytes of a message in memory besides its payload and headers.
pub(crate) const MESSAGE_BYTES: usize = 200;

/// The approximate size of headers in memory.
pub(crate) fn weight_of_headers(headers: &Headers) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len() + 64).sum()
}

fn key_hash_of(key: Option<&str>, message_id: Uuid) -> u64 {
    match key {
        Some(key) => xxhash_rust::xxh3::xxh3_64(key.as_bytes()),
        None => xxhash_rust::xxh3::xxh3_64(message_id.as_bytes()),
    }
}

/// The lane of a message of which only the key and the id are known: the same as [`Message::lane`].
///
/// SHA-256 and no faster hash: PostgreSQL computes the same (`lane_of` in `claim_ordered.sql`) for consumers in plain SQL,
/// and has no other hash that is the same in every version, on every machine and in restricted builds.
pub(crate) fn lane_of(key: Option<&str>, message_id: Uuid, lanes: u16) -> u16 {
    let digest = Sha256::digest(key.map_or(message_id.as_bytes().as_slice(), str::as_bytes));
    let hash = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
    u16::try_from(hash % u32::from(lanes.max(1))).expect("a remainder of a 16-bit number fits 16 bits")
}

/// The result of publishing one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its offset; `None` while a scheduled message is not due.
    pub offset: Option<Offset>,
    /// Its identity; for a duplicate, that of the first.
    pub message_id: Uuid,
    /// Whether a message with the same dedup key already existed: `offset` is then that message's offset.
    pub duplicate: bool,
}
