//! Entries of the outbox: what is inserted, what is read back, and the makers of the usual kinds.

use std::fmt;

use bytes::Bytes;
use jiff::Timestamp;

use crate::error::{Error, ErrorKind, Result};
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::message::{Headers, Message, check_headers};
use crate::name::check_name;
use crate::transaction::{Row, Value};

/// The topic of a command is this and its name.
pub const COMMAND_TOPIC_PREFIX: &str = "commands.";
/// The queue of replies to requests that name none.
pub const REPLY_QUEUE: &str = "replies";
/// The type of entries that ask for a command.
pub const COMMAND_REQUESTED: &str = "CommandRequested";
/// The header with the id of a command.
pub const HEADER_COMMAND_ID: &str = "commandId";
/// The header with the name of a command.
pub const HEADER_COMMAND_NAME: &str = "commandName";
/// The header with the business key of a command.
pub const HEADER_BUSINESS_KEY: &str = "businessKey";
/// The header with the queue that a reply goes to.
pub const HEADER_REPLY_TO: &str = "replyTo";
/// The header of a reply with the id of its request.
pub const HEADER_CORRELATION_ID: &str = "correlationId";

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Category {
    /// Asks for something to be done.
    Command,
    /// Says that something has happened.
    Event,
    /// Answers a command.
    Reply,
}

impl Category {
    /// As it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Category::Command => "command",
            Category::Event => "event",
            Category::Reply => "reply",
        }
    }

    /// The category of this name.
    pub fn parse(text: &str) -> Option<Self> {
        [Category::Command, Category::Event, Category::Reply].into_iter().find(|one| one.as_str() == text)
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where an entry is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutboxStatus {
    /// Not claimed yet.
    New,
    /// A claimer sends it, or gave it back until its `next_at`.
    Claimed,
    /// Sent. It never changes again, and is removed after its retention.
    Published,
    /// Sending failed; due again at its `next_at`.
    Failed,
    /// Its attempts ran out: a dead letter has it, and no sweep takes it.
    Parked,
}

impl OutboxStatus {
    /// Every status.
    pub const ALL: [OutboxStatus; 5] = [
        OutboxStatus::New,
        OutboxStatus::Claimed,
        OutboxStatus::Published,
        OutboxStatus::Failed,
        OutboxStatus::Parked,
    ];

    /// As it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            OutboxStatus::New => "NEW",
            OutboxStatus::Claimed => "CLAIMED",
            OutboxStatus::Published => "PUBLISHED",
            OutboxStatus::Failed => "FAILED",
            OutboxStatus::Parked => "PARKED",
        }
    }

    /// The status of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }
}

impl fmt::Display for OutboxStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An entry to insert: see the makers, or [`NewEntry::new`].
///
/// ```
/// use headwater::outbox::{Category, NewEntry};
///
/// let reply = [("replyTo".to_owned(), "orders.replies".to_owned())].into();
/// let command = NewEntry::command_requested("CreateOrder", "7f3c", "customer-3", r#"{"id":17}"#, reply);
/// assert_eq!((command.category, command.topic.as_str()), (Category::Command, "commands.CreateOrder"));
/// assert_eq!(command.headers["commandId"], "7f3c");
///
/// let event = NewEntry::kafka_event("orders", "customer-3", "OrderCreated", r#"{"id":17}"#);
/// assert!(event.headers.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct NewEntry {
    /// What it is.
    pub category: Category,
    /// The topic, queue or subject of the broker.
    pub topic: String,
    /// What the broker orders and routes by.
    pub key: Option<String>,
    /// The type, for the receiver.
    pub entry_type: String,
    /// The bytes.
    pub payload: Bytes,
    /// Further data, as strings.
    pub headers: Headers,
}

impl NewEntry {
    /// An entry without key and headers.
    pub fn new(
        category: Category,
        topic: impl Into<String>,
        entry_type: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        let (topic, entry_type, payload) = (topic.into(), entry_type.into(), payload.into());
        NewEntry { category, topic, key: None, entry_type, payload, headers: Headers::new() }
    }

    /// A command: its topic is [`COMMAND_TOPIC_PREFIX`] and its name, its key the business key. The headers are those for the
    /// reply and the command's id, name and business key.
    pub fn command_requested(
        name: &str,
        command_id: impl fmt::Display,
        business_key: &str,
        payload: impl Into<Bytes>,
        reply: Headers,
    ) -> Self {
        let topic = format!("{COMMAND_TOPIC_PREFIX}{name}");
        let entry = NewEntry::new(Category::Command, topic, COMMAND_REQUESTED, payload).key(business_key);
        NewEntry { headers: reply, ..entry }
            .header(HEADER_COMMAND_ID, command_id.to_string())
            .header(HEADER_COMMAND_NAME, name)
            .header(HEADER_BUSINESS_KEY, business_key)
    }

    /// An event for a topic of Kafka, without headers.
    pub fn kafka_event(
        topic: impl Into<String>,
        key: impl Into<String>,
        event_type: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        NewEntry::new(Category::Event, topic, event_type, payload).key(key)
    }

    /// A reply to a request: to the queue in its header `replyTo`, or to [`REPLY_QUEUE`], with the key and the headers of the
    /// request, and its id as `correlationId`.
    pub fn mq_reply(
        request: &impl Request,
        reply_type: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        let headers = request.headers().clone();
        let topic = headers.get(HEADER_REPLY_TO).map_or(REPLY_QUEUE, String::as_str).to_owned();
        let correlation_id = request.correlation_id();
        let entry = NewEntry::new(Category::Reply, topic, reply_type, payload);
        let entry = NewEntry { headers, key: request.key().map(str::to_owned), ..entry };
        match correlation_id {
            Some(id) => entry.header(HEADER_CORRELATION_ID, id),
            None => entry,
        }
    }

    /// Sets the topic.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Sets the key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Checks every field against its rule.
    pub(super) fn validate(&self, payload_bytes_max: usize) -> Result<()> {
        check_name("topic", &self.topic)?;
        self.key.as_deref().map_or(Ok(()), |key| check_name("key", key))?;
        check_name("type", &self.entry_type)?;
        let (bytes, most) = (self.payload.len(), payload_bytes_max.min(PAYLOAD_BYTES_MAX));
        if bytes > most {
            let remedy = "raise payload_bytes_max or store the payload elsewhere";
            let text = format!("payload too large: {bytes} bytes, the outbox allows {most}; {remedy}");
            return Err(Error::new(ErrorKind::PayloadTooLarge, text));
        }
        check_headers(&self.headers)
    }

    pub(super) fn params(&self, payload_bytes_max: usize) -> Vec<Value> {
        let most = i64::try_from(payload_bytes_max.min(PAYLOAD_BYTES_MAX)).expect("at most 64 MiB");
        vec![
            self.category.as_str().into(),
            self.topic.as_str().into(),
            self.key.clone().into(),
            self.entry_type.as_str().into(),
            self.payload.clone().into(),
            json_of(&self.headers).into(),
            most.into(),
        ]
    }
}

/// A request that can be replied to.
pub trait Request {
    /// Its key.
    fn key(&self) -> Option<&str>;
    /// Its headers.
    fn headers(&self) -> &Headers;
    /// What a reply refers to: the id of its command, or what it refers to itself.
    fn correlation_id(&self) -> Option<String> {
        let header = |name| self.headers().get(name).cloned();
        header(HEADER_COMMAND_ID).or_else(|| header(HEADER_CORRELATION_ID))
    }
}

impl Request for OutboxEntry {
    fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    fn headers(&self) -> &Headers {
        &self.headers
    }
}

impl Request for Message {
    fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Without a command's id it is the correlation id of the message, or its id.
    fn correlation_id(&self) -> Option<String> {
        let header = |name| self.headers.get(name).cloned();
        let own = || self.correlation_id.clone().unwrap_or_else(|| self.message_id.to_string());
        Some(header(HEADER_COMMAND_ID).or_else(|| header(HEADER_CORRELATION_ID)).unwrap_or_else(own))
    }
}

/// An entry of the outbox.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxEntry {
    /// Its number, from 1, rising.
    pub id: i64,
    /// What it is.
    pub category: Category,
    /// The topic, queue or subject of the broker.
    pub topic: String,
    /// What the broker orders and routes by.
    pub key: Option<String>,
    /// The type, for the receiver.
    pub entry_type: String,
    /// The bytes, exactly; none where a list is [without payloads](super::OutboxSelection::without_payloads).
    pub payload: Bytes,
    /// Further data.
    pub headers: Headers,
    /// Where it is on its way.
    pub status: OutboxStatus,
    /// How often it failed, and how often its claim timed out.
    pub attempts: u32,
    /// No sweep takes it before this time.
    pub next_at: Option<Timestamp>,
    /// Its last claimer.
    pub claimed_by: Option<String>,
    /// When that claimed it.
    pub claimed_at: Option<Timestamp>,
    /// When it was inserted.
    pub created_at: Timestamp,
    /// When it was marked as published.
    pub published_at: Option<Timestamp>,
    /// Why it last failed.
    pub last_error: Option<String>,
}

impl OutboxEntry {
    pub(super) fn from_row(row: &Row) -> Result<Self> {
        let (category, status): (String, String) = (row.get("category")?, row.get("status")?);
        Ok(OutboxEntry {
            id: row.get("id")?,
            category: Category::parse(&category).ok_or_else(|| unreadable("category", &category))?,
            topic: row.get("topic")?,
            key: row.get("key")?,
            entry_type: row.get("type")?,
            payload: row.get::<Vec<u8>>("payload")?.into(),
            headers: headers_of(&row.get::<String>("headers")?)?,
            status: OutboxStatus::parse(&status).ok_or_else(|| unreadable("status", &status))?,
            attempts: row.get("attempts")?,
            next_at: time_of(row, "next_at_us")?,
            claimed_by: row.get("claimed_by")?,
            claimed_at: time_of(row, "claimed_at_us")?,
            created_at: time_of(row, "created_at_us")?.ok_or_else(|| unreadable("created_at", "NULL"))?,
            published_at: time_of(row, "published_at_us")?,
            last_error: row.get("last_error")?,
        })
    }
}

/// Headers as the JSON object that is stored.
pub(crate) fn json_of(headers: &Headers) -> String {
    serde_json::to_string(headers).expect("a map of strings is always JSON")
}

/// Stored headers.
pub(crate) fn headers_of(text: &str) -> Result<Headers> {
    serde_json::from_str(text).map_err(|_| unreadable("headers", text))
}

/// A stored time; `None` for NULL.
pub(crate) fn time_of(row: &Row, column: &str) -> Result<Option<Timestamp>> {
    let us: Option<i64> = row.get(column)?;
    us.map(|us| Timestamp::from_microsecond(us).map_err(|_| unreadable(column, &us.to_string()))).transpose()
}

pub(crate) fn unreadable(column: &str, value: &str) -> Error {
    let text = format!("a stored value cannot be read: {column} is {value}; run `headwater doctor`");
    Error::new(ErrorKind::Database, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn makers_fill_what_their_kind_needs() {
        let reply = headers(&[("replyTo", "answers"), ("commandId", "of the caller")]);
        let command = NewEntry::command_requested("Pay", 7, "customer-3", "{}", reply);
        assert_eq!((command.category, command.topic.as_str()), (Category::Command, "commands.Pay"));
        assert_eq!(
            (command.entry_type.as_str(), command.key.as_deref()),
            ("CommandRequested", Some("customer-3"))
        );
        let expected = headers(&[
            ("replyTo", "answers"),
            ("commandId", "7"),
            ("commandName", "Pay"),
            ("businessKey", "customer-3"),
        ]);
        assert_eq!(command.headers, expected, "the command's own id wins");

        let event = NewEntry::kafka_event("orders", "k", "OrderPaid", "{}");
        assert_eq!((event.category, event.topic.as_str()), (Category::Event, "orders"));
        assert_eq!((event.key.as_deref(), event.headers.len()), (Some("k"), 0));
    }

    #[test]
    fn a_reply_goes_where_its_request_says() {
        let row = |headers: Headers| OutboxEntry {
            id: 1,
            category: Category::Command,
            topic: "commands.Pay".into(),
            key: Some("customer-3".into()),
            entry_type: COMMAND_REQUESTED.into(),
            payload: Bytes::new(),
            headers,
            status: OutboxStatus::New,
            attempts: 0,
            next_at: None,
            claimed_by: None,
            claimed_at: None,
            created_at: Timestamp::UNIX_EPOCH,
            published_at: None,
            last_error: None,
        };
        let asked = row(headers(&[("replyTo", "answers"), ("commandId", "7")]));
        let reply = NewEntry::mq_reply(&asked, "CommandCompleted", "{}");
        assert_eq!((reply.category, reply.topic.as_str()), (Category::Reply, "answers"));
        assert_eq!(reply.key.as_deref(), Some("customer-3"));
        let expected = headers(&[("replyTo", "answers"), ("commandId", "7"), ("correlationId", "7")]);
        assert_eq!(reply.headers, expected);
        let reply = NewEntry::mq_reply(&row(Headers::new()), "CommandFailed", "{}");
        assert_eq!((reply.topic.as_str(), reply.headers.len()), (REPLY_QUEUE, 0));
    }
}
