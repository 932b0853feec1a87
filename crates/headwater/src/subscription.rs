//! Subscriptions: one group on one topic, where it starts, and how far it is.

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
pub use status::{Activity, Ailment, MissedMessages, STUCK_AFTER, SubscriptionStatus};

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
    /// At this offset, at the first stored if that is above it. An offset beyond the next one is refused: what is published
    /// until then would be passed over.
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

/// How one group's deliveries differ from what its topic says. `None` takes the topic's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeliveryPolicy {
    /// How long a hand-out lasts.
    #[serde(rename = "lease_ms", with = "millis::optional")]
    pub lease: Option<Duration>,
    /// How often a message is handed out before it is buried.
    pub max_attempts: Option<u32>,
    /// The first retry delay.
    #[serde(rename = "backoff_initial_ms", with = "millis::optional")]
    pub backoff_initial: Option<Duration>,
    /// The longest retry delay.
    #[serde(rename = "backoff_max_ms", with = "millis::optional")]
    pub backoff_max: Option<Duration>,
}

impl DeliveryPolicy {
    /// The settings of a topic as a group with this policy has them.
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

/// A range of a subscription that was handed out and is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// Its offsets; in a lane only the lane's own messages among them.
    pub range: OffsetRange,
    /// The lane of an ordered subscription it is in.
    pub lane: Option<u16>,
    /// Held, waiting for its time, or waiting for another message.
    pub state: OutstandingState,
    /// The token of its lease, while it is leased: what [`crate::store::Admin::release_lease`] takes.
    pub token: Option<LeaseToken>,
    /// Who holds it, or let it run out; nobody once it was settled to come again.
    pub owner: Option<Owner>,
    /// How often it was handed out, as far as that counts; the present time included.
    pub attempts: u32,
    /// Leased: the deadline, `None` if it never ends by itself. Waiting: when it may be handed out, `None` for at once.
    /// Parked: `None`.
    pub due_at: Option<Timestamp>,
    /// Why it has to be tried again, if a handler said.
    pub last_error: Option<String>,
    /// The key it waits for, or makes others wait for; only in ordered subscriptions.
    pub key: Option<String>,
    /// Its holder vanished: it is handed out alone, in ever smaller parts.
    pub suspect: bool,
}

/// What an outstanding range is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutstandingState {
    /// An owner has it, until its deadline.
    Leased,
    /// It comes again at its time, or as soon as somebody asks.
    Waiting,
    /// Behind an older message of its key.
    Parked,
}

impl OutstandingState {
    /// Of a stored range: who holds it, whether that is over, and whether it is parked.
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
