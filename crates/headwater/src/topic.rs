//! Topics: a named log and its settings.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::limits::{DELAY_MAX, LANES_MAX, PAYLOAD_BYTES_DEFAULT, PAYLOAD_BYTES_MAX};
use crate::message::Offset;
use crate::name::TopicName;

/// The store's own number for a topic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TopicId(pub i32);

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who gets a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Semantics {
    /// One implicit group; its members compete.
    #[default]
    Queue,
    /// Every subscription gets every message.
    PubSub,
}

impl Semantics {
    /// The word the stores and the CLI use.
    pub fn as_str(self) -> &'static str {
        match self {
            Semantics::Queue => "queue",
            Semantics::PubSub => "pub_sub",
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        match text {
            "queue" => Ok(Semantics::Queue),
            "pub_sub" => Ok(Semantics::PubSub),
            other => Err(Error::invalid("semantics", format!("{other} is neither queue nor pub_sub"))),
        }
    }
}

/// In which order a subscription's messages are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ordering {
    /// Offsets rise within a lease; leases run side by side.
    #[default]
    None,
    /// Strictly by offset among messages of one key.
    Key,
}

impl Ordering {
    /// The word the stores and the CLI use.
    pub fn as_str(self) -> &'static str {
        match self {
            Ordering::None => "none",
            Ordering::Key => "key",
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        match text {
            "none" => Ok(Ordering::None),
            "key" => Ok(Ordering::Key),
            other => Err(Error::invalid("ordering", format!("{other} is neither none nor key"))),
        }
    }
}

/// How a topic behaves. Subscriptions take lease, attempts, back-off and ordering from their topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSettings {
    /// Queue or pub/sub.
    pub semantics: Semantics,
    /// How long a hand-out lasts; zero means it is never reassigned by itself.
    pub lease: Duration,
    /// How often a message is handed out before it is buried.
    pub max_attempts: u32,
    /// The first retry delay; it doubles with each attempt.
    pub backoff_initial: Duration,
    /// The longest retry delay.
    pub backoff_max: Duration,
    /// Per-key order, or none.
    pub ordering: Ordering,
    /// Into how many lanes an ordered subscription is split. Fixed when a group subscribes.
    pub lanes: u16,
    /// The largest payload.
    pub payload_bytes_max: usize,
    /// How long a dedup key is remembered.
    pub dedup_window: Duration,
    /// How long the head waits at a missing offset before it steps over it, noting the gap (PostgreSQL; the
    /// embedded file has one writer and no gaps).
    pub gap_patience: Duration,
}

impl Default for TopicSettings {
    fn default() -> Self {
        TopicSettings {
            semantics: Semantics::Queue,
            lease: Duration::from_secs(300),
            max_attempts: 10,
            backoff_initial: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
            ordering: Ordering::None,
            lanes: 16,
            payload_bytes_max: PAYLOAD_BYTES_DEFAULT,
            dedup_window: Duration::from_secs(600),
            gap_patience: Duration::from_millis(50),
        }
    }
}

impl TopicSettings {
    /// The defaults of a fan-out topic.
    pub fn pub_sub() -> Self {
        TopicSettings { semantics: Semantics::PubSub, ..TopicSettings::default() }
    }

    /// Checks every field against its rule.
    pub fn validate(&self) -> Result<()> {
        let durations = [
            ("lease", self.lease),
            ("backoff_initial", self.backoff_initial),
            ("backoff_max", self.backoff_max),
            ("dedup_window", self.dedup_window),
            ("gap_patience", self.gap_patience),
        ];
        for (field, value) in durations {
            if value > DELAY_MAX {
                return Err(Error::invalid(field, "longer than 366 days"));
            }
        }
        if self.max_attempts == 0 || self.max_attempts > 1_000 {
            return Err(Error::invalid("max_attempts", "must be from 1 to 1000"));
        }
        if self.lanes == 0 || self.lanes > LANES_MAX {
            return Err(Error::invalid("lanes", format!("must be from 1 to {LANES_MAX}")));
        }
        if self.payload_bytes_max == 0 || self.payload_bytes_max > PAYLOAD_BYTES_MAX {
            return Err(Error::invalid(
                "payload_bytes_max",
                format!("must be from 1 to {PAYLOAD_BYTES_MAX}"),
            ));
        }
        Ok(())
    }
}

/// A topic as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// The store's number for it.
    pub topic_id: TopicId,
    /// Its name.
    pub name: TopicName,
    /// Its settings.
    pub settings: TopicSettings,
}

/// A topic with what can be seen of its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicStatus {
    /// The topic.
    pub topic: Topic,
    /// The highest offset that may be delivered.
    pub head: Offset,
    /// The number of gaps noted below the head (always 0 on the embedded file).
    pub gaps: u64,
    /// The number of delayed messages waiting for their time.
    pub scheduled: u64,
    /// The number of subscriptions.
    pub subscriptions: u64,
}
