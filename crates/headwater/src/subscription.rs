//! Subscriptions: one group on one topic, where it starts, and how far it is.

use std::fmt;

use jiff::Timestamp;

use crate::message::Offset;
use crate::name::GroupName;
use crate::topic::{Topic, TopicId};

/// The store's own number for a subscription.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubscriptionId(pub i32);

impl fmt::Display for SubscriptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a new subscription starts. A group that exists keeps its place whatever is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At the oldest message still stored.
    #[default]
    Beginning,
    /// After everything committed before the call; everything that commits after it returned is delivered.
    Now,
    /// At this offset.
    Offset(Offset),
    /// At the first message published at or after this time.
    Timestamp(Timestamp),
    /// At the beginning, but at most this many messages back.
    BeginningBounded(u64),
}

/// A group's subscription to a topic, as a consumer needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The store's number for it.
    pub subscription_id: SubscriptionId,
    /// The group.
    pub group: GroupName,
    /// The topic, with its settings.
    pub topic: Topic,
    /// Into how many lanes it is split: 0 when messages are not ordered by key.
    pub lanes: u16,
}

/// How far a subscription is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionStatus {
    /// The store's number for it.
    pub subscription_id: SubscriptionId,
    /// Its topic.
    pub topic_id: TopicId,
    /// The group.
    pub group: GroupName,
    /// The first offset never handed out; of an ordered subscription, its slowest lane's.
    pub next: Offset,
    /// Everything at or below it is done.
    pub floor: Offset,
    /// Ranges handed out and not settled.
    pub leased: u64,
    /// Ranges that wait: for a retry time, behind a blocked key, or to be claimed again.
    pub waiting: u64,
    /// Messages buried.
    pub dead_letters: u64,
    /// Hand-outs that expired and were given to another: `stuck_messages_reassigned`.
    pub reassigned: u64,
}
