//! Topics: a named log and its settings.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::message::Offset;
use crate::name::TopicName;

mod json;
mod removal;
mod settings;
mod storage;

pub(crate) use json::{exists_otherwise, millis, written};
pub use removal::{Removal, TopicContents};
pub use settings::{Preset, TopicSettings, Tracking};
pub use storage::{Partition, Storage};

/// The store's own number for a topic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TopicId(pub i32);

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who gets a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Semantics {
    /// One implicit group; its members compete.
    #[default]
    Queue,
    /// Every subscription gets every message.
    PubSub,
}

impl Semantics {
    /// The name that the stores and the CLI use.
    pub fn as_str(self) -> &'static str {
        match self {
            Semantics::Queue => "queue",
            Semantics::PubSub => "pub_sub",
        }
    }
}

/// In which order a subscription's messages are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ordering {
    /// Offsets rise within a lease; leases are handled concurrently.
    #[default]
    None,
    /// Strictly by offset among messages of one key.
    Key,
}

impl Ordering {
    /// The name that the stores and the CLI use.
    pub fn as_str(self) -> &'static str {
        match self {
            Ordering::None => "none",
            Ordering::Key => "key",
        }
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

/// A topic with figures of its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicStatus {
    /// The topic.
    pub topic: Topic,
    /// The highest offset that may be delivered.
    pub head: Offset,
    /// The number of gaps recorded below the head (always 0 on SQLite).
    pub gaps: u64,
    /// The number of scheduled messages that are not due.
    pub scheduled: u64,
    /// The number of subscriptions that are not cancelled.
    pub subscriptions: u64,
    /// The number of subscriptions that count: retention waits for them.
    pub counting: u64,
    /// The shortest heartbeat timeout among its groups: the topic's, or one of a group's own.
    pub heartbeat_timeout: Duration,
    /// The first offset that may still be stored: everything below it was removed.
    pub first: Offset,
    /// The watermark: everything at or below it is done for every counting subscription. Without one, it stays.
    pub watermark: Offset,
    /// How many messages have their completion records added or removed after `tracking` was changed. `None` when no
    /// change is under way.
    pub tracking_change: Option<Progress>,
}

/// A health issue of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TopicIssue {
    /// Messages were published to a pub/sub topic that no subscription counts for: no group gets them, and they are
    /// removed after `zero_subscription_retention`. Or the topic refuses to publish.
    ZeroSubscriptions,
}

impl TopicIssue {
    /// The name that the CLI uses.
    pub fn as_str(self) -> &'static str {
        match self {
            TopicIssue::ZeroSubscriptions => "zero subscriptions",
        }
    }
}

impl TopicStatus {
    /// Its health issues; empty if it is healthy.
    pub fn health_issues(&self) -> Vec<TopicIssue> {
        let TopicSettings { semantics, block_writes_on_zero_subscriptions: blocks, .. } =
            &self.topic.settings;
        let is_used = self.head.0 > 0 || *blocks;
        let is_idle = *semantics == Semantics::PubSub && self.counting == 0 && is_used;
        is_idle.then_some(TopicIssue::ZeroSubscriptions).into_iter().collect()
    }
}

/// The progress of work on a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Offsets processed.
    pub done: u64,
    /// Offsets to process in total.
    pub total: u64,
}
