//! Subscriptions: one group on one topic, its start and its progress.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::lease::{LeaseToken, OffsetRange};
use crate::message::Offset;
use crate::name::{GroupName, Owner};
use crate::topic::{Topic, TopicSettings, millis};

mod state;
mod status;

pub use state::{SubscriptionState, Transition};
pub(crate) use state::{refused_cancelled, refused_removal};
pub use status::{Activity, HealthIssue, MissedMessages, STUCK_AFTER, SubscriptionStatus};

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
}

/// The delivery settings of one group that differ from its topic's. `None` takes the topic's.
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
}

impl DeliveryPolicy {
    /// The settings of a topic with this policy applied.
    pub fn apply_to(&self, settings: &TopicSettings) -> TopicSettings {
        TopicSettings {
            lease: self.lease.unwrap_or(settings.lease),
            max_attempts: self.max_attempts.unwrap_or(settings.max_attempts),
            backoff_initial: self.backoff_initial.unwrap_or(settings.backoff_initial),
            backoff_max: self.backoff_max.unwrap_or(settings.backoff_max),
            ..settings.clone()
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
