//! Subscriptions: one group on one topic, its start and its progress.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::lease::{LeaseToken, OffsetRange};
use crate::message::Offset;
use crate::name::{GroupName, Owner};
use crate::topic::{Topic, TopicSettings, millis};

mod message;
mod new;
mod state;
pub(crate) mod status;

pub(crate) use message::no_message;
pub use message::{MessageAct, MessageState};
pub use new::{GroupOrder, NewSubscription};
pub use state::{SubscriptionState, Transition};
pub(crate) use state::{refused_cancelled, refused_removal};
pub use status::{
    Activity, BURIED_MANY, HealthIssue, LATELY, MissedMessages, STUCK_AFTER, SubscriptionStatus,
};

/// The store's own number for a subscription.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubscriptionId(pub i32);

impl fmt::Display for SubscriptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a new subscription starts. An existing group keeps its position whatever is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At the oldest message still stored.
    #[default]
    Beginning,
    /// After everything committed before the call; everything that commits after the call returned is delivered.
    Now,
    /// At this offset, or at the first stored one if that is higher. An offset beyond the next one to be published is
    /// refused: messages published below it would be skipped.
    Offset(Offset),
    /// At the first message published at or after this time.
    Timestamp(Timestamp),
    /// At the oldest message still stored, but at most this many messages back.
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
    /// Set if subscribing resurrected it, as it was dead: how many messages it has missed.
    pub resurrected: Option<u64>,
}

impl Subscription {
    /// The handler name in the inbox entries of its transactional members, unless the program sets another.
    pub(crate) fn inbox_name(&self) -> String {
        format!("{}/{}", self.topic.name, self.group)
    }
}

/// The delivery settings of one group that differ from its topic's, stored with its subscription. `None` takes the
/// topic's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeliveryPolicy {
    /// How long a lease lasts.
    #[serde(rename = "lease_ms", with = "millis::optional")]
    pub lease: Option<Duration>,
    /// How often a message is handed out before it becomes a dead letter.
    pub max_attempts: Option<u32>,
    /// The first retry delay.
    #[serde(rename = "backoff_initial_ms", with = "millis::optional")]
    pub backoff_initial: Option<Duration>,
    /// The longest retry delay.
    #[serde(rename = "backoff_max_ms", with = "millis::optional")]
    pub backoff_max: Option<Duration>,
    /// How often the processes of the group send a heartbeat.
    #[serde(rename = "heartbeat_interval_ms", with = "millis::optional")]
    pub heartbeat_interval: Option<Duration>,
    /// After how long without a heartbeat the group is dead.
    #[serde(rename = "heartbeat_timeout_ms", with = "millis::optional")]
    pub heartbeat_timeout: Option<Duration>,
}

impl DeliveryPolicy {
    /// The settings of a topic with this policy applied.
    pub fn apply_to(&self, settings: &TopicSettings) -> TopicSettings {
        TopicSettings {
            lease: self.lease.unwrap_or(settings.lease),
            max_attempts: self.max_attempts.unwrap_or(settings.max_attempts),
            backoff_initial: self.backoff_initial.unwrap_or(settings.backoff_initial),
            backoff_max: self.backoff_max.unwrap_or(settings.backoff_max),
            heartbeat_interval: self.heartbeat_interval.unwrap_or(settings.heartbeat_interval),
            heartbeat_timeout: self.heartbeat_timeout.unwrap_or(settings.heartbeat_timeout),
            ..settings.clone()
        }
    }

    /// Checks it by the rules for a topic's settings, with the topic's where it has none. Of the topic only what a group can
    /// have of its own is checked: a stored topic may be older than another rule, and its groups still subscribe.
    pub(crate) fn validate_for(&self, topic: &TopicSettings) -> Result<()> {
        let topic = TopicSettings {
            lease: topic.lease,
            max_attempts: topic.max_attempts,
            backoff_initial: topic.backoff_initial,
            backoff_max: topic.backoff_max,
            heartbeat_interval: topic.heartbeat_interval,
            heartbeat_timeout: topic.heartbeat_timeout,
            ..TopicSettings::default()
        };
        self.apply_to(&topic).validate()
    }

    /// This policy, and the other one where this has no value.
    pub fn or(self, other: DeliveryPolicy) -> DeliveryPolicy {
        DeliveryPolicy {
            lease: self.lease.or(other.lease),
            max_attempts: self.max_attempts.or(other.max_attempts),
            backoff_initial: self.backoff_initial.or(other.backoff_initial),
            backoff_max: self.backoff_max.or(other.backoff_max),
            heartbeat_interval: self.heartbeat_interval.or(other.heartbeat_interval),
            heartbeat_timeout: self.heartbeat_timeout.or(other.heartbeat_timeout),
        }
    }
}

/// An outstanding range of a subscription: handed out and not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// Its offsets; in a lane only the lane's own messages among them.
    pub range: OffsetRange,
    /// The lane of an ordered subscription it is in.
    pub lane: Option<u16>,
    /// Leased, waiting for its time, or parked behind another message.
    pub state: OutstandingState,
    /// The token of its lease, while it is leased; [`crate::store::Admin::release_lease`] takes it.
    pub token: Option<LeaseToken>,
    /// The owner that holds it or let it expire; `None` once it was settled as a retry or released.
    pub owner: Option<Owner>,
    /// How many of its hand-outs count as attempts, including the present one.
    pub attempts: u32,
    /// Leased: the deadline, `None` if the lease never expires. Waiting: when it may be handed out, `None` for at once.
    /// Parked: `None`.
    pub due_at: Option<Timestamp>,
    /// The error of the last attempt, if a handler returned one.
    pub last_error: Option<String>,
    /// The key it waits for, or that waits for it; only in ordered subscriptions.
    pub key: Option<String>,
    /// Its owner crashed: it is handed out alone, in ever smaller ranges.
    pub suspect: bool,
}

/// The state of an outstanding range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutstandingState {
    /// An owner holds it until its deadline.
    Leased,
    /// It can be claimed again from its time on, or at once if it has none.
    Waiting,
    /// Behind an older message of its key.
    Parked,
}

impl OutstandingState {
    /// The state of a stored range: whether an owner holds it, whether its deadline has passed, and whether it is
    /// parked.
    pub(crate) fn of(held: bool, is_over: bool, parked: bool) -> Self {
        match (held, is_over) {
            (true, false) => OutstandingState::Leased,
            _ if parked => OutstandingState::Parked,
            _ => OutstandingState::Waiting,
        }
    }

    /// The state as text: `leased`, `waiting` or `parked`.
    pub fn as_str(self) -> &'static str {
        match self {
            OutstandingState::Leased => "leased",
            OutstandingState::Waiting => "waiting",
            OutstandingState::Parked => "parked",
        }
    }
}
