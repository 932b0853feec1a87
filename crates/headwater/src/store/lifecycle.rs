//! What operators and living processes do with topics and subscriptions. Part of the contract of a [`Store`](super::Store).

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::error::{Error, Result};
use crate::lease::{LeaseToken, OffsetRange};
use crate::message::Offset;
use crate::name::{GroupName, Owner, TopicName};
use crate::subscription::{
    Activity, DeliveryPolicy, MissedMessages, Start, SubscriptionId, SubscriptionState,
};
use crate::topic::{Topic, TopicSettings};

/// The life of topics and subscriptions.
///
/// Every act of an operator is one transaction with its line in the audit, which nobody may change.
#[async_trait]
pub trait Lifecycle {
    /// Changes a topic's settings. Everything can be changed while messages flow, with two exceptions that are
    /// `InvalidInput`: `pub_sub` becomes `queue` only with at most one group, and `storage` changes only while
    /// no message is stored. Changed `tracking` is brought about by upkeep: see [`super::Tracking::track`].
    /// Groups that exist keep their lanes.
    async fn alter_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic>;

    /// Whether publishes in plain SQL, and programs whose [`super::OpenOptions::auto_create`] says nothing, create topics from
    /// now on; programs that are running keep what they found. Only the embedded store keeps that; elsewhere it is
    /// `InvalidInput`.
    async fn set_auto_create(&self, _: bool) -> Result<()> {
        let why = "this database keeps none: each program says so when it opens the store, and plain SQL creates no topic";
        Err(Error::invalid("auto_create", why))
    }

    /// Pauses an active subscription; from any other state it is `InvalidTransition`. Hand-outs stop in every process as
    /// soon as this returned. Consumers that wait for the topic are woken, so that they give back what they have not
    /// started. Nothing is lost.
    async fn pause(&self, topic: &TopicName, group: &GroupName) -> Result<()>;

    /// Resumes a paused subscription; from any other state it is `InvalidTransition`. Wakes as a pause does.
    async fn resume(&self, topic: &TopicName, group: &GroupName) -> Result<()>;

    /// Cancels a subscription for good; `InvalidTransition` if it is cancelled already. Its leases are lost at once, it
    /// no longer counts, and its place in the accounting is released as [`super::Tracking::track`] describes. Wakes as a
    /// pause does.
    async fn cancel(&self, topic: &TopicName, group: &GroupName) -> Result<()>;

    /// Deletes a cancelled subscription with everything of its own: cursors, ranges, dead letters. Only once its
    /// accounting is released; until then, and in any other state, it is `InvalidTransition`.
    async fn remove(&self, topic: &TopicName, group: &GroupName) -> Result<()>;

    /// Brings a dead subscription back: at its cursor, or at most `behind_max` messages behind the head. What retention
    /// removed meanwhile is reported as missed. Of many at once one resurrects and the others find it active, which is
    /// fine for them: then nothing changes and `resurrected` is false. Paused and cancelled are `InvalidTransition`.
    async fn resurrect(
        &self,
        topic: &TopicName,
        group: &GroupName,
        behind_max: Option<u64>,
    ) -> Result<Resurrected>;

    /// The owner proves that its process lives, and ends the leases of processes that have ended, long before they are silent for
    /// too long: as [`super::Store::heartbeat`] ends them. Returns how many leases ended. Call it about every half second
    /// beside the heartbeat; while nothing has ended it only reads.
    ///
    /// A proof is what the kernel takes back when a process ends, and not before: a session (PostgreSQL), the lock of a file
    /// (the embedded engine). A process that is slow or stopped has it, and only silence ends its leases. One whose session was cut
    /// has a second and a half to connect again or to take its proof back, by any connection, and loses nothing. An owner
    /// without a heartbeat proves nothing, and an owner without a proof is judged by silence alone.
    async fn take_over(&self, owner: &Owner) -> Result<u64>;

    /// Moves a subscription's cursor. Everything it has outstanding is forgotten and its leases are lost; its dead
    /// letters stay. What lies between is handed out again, or never. With `dry_run` nothing is changed and the
    /// answer tells what would be. Cancelled is `InvalidTransition`.
    async fn seek(&self, topic: &TopicName, group: &GroupName, to: Start, dry_run: bool) -> Result<Moved>;

    /// Gives a group a delivery policy of its own.
    async fn set_policy(&self, topic: &TopicName, group: &GroupName, policy: &DeliveryPolicy) -> Result<()>;

    /// The delivery policy a group was given. Cancelled is `NoSuchSubscription`.
    async fn policy(&self, topic: &TopicName, group: &GroupName) -> Result<DeliveryPolicy>;

    /// What holds for each of these subscriptions: its topic's settings, with its group's policy applied. One read for a process
    /// that serves many. Those that are cancelled or removed are left out.
    async fn settings_of(
        &self,
        subscriptions: &[SubscriptionId],
    ) -> Result<Vec<(SubscriptionId, TopicSettings)>>;

    /// Ends a lease by hand, whoever holds it: it is handed out again at once, without an attempt counted. `LeaseLost` if
    /// there is none of that token.
    async fn release_lease(&self, token: LeaseToken) -> Result<()>;

    /// Gives up, for dead subscriptions, what only they have not done and what was published longer ago than
    /// `older_than`: their cursors move past it and it is counted as missed. With `dry_run` nothing is changed.
    async fn force_complete(
        &self,
        topic: &TopicName,
        older_than: Duration,
        dry_run: bool,
    ) -> Result<Vec<ForceCompleted>>;

    /// How many messages published longer ago than `older_than` each counting group has not done; only groups with some.
    async fn stuck(&self, topic: &TopicName, older_than: Duration) -> Result<Vec<Stuck>>;

    /// What was done by operators, newest first, at most `limit`.
    async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>>;

    /// Who acked the message at an offset, oldest first. Nothing where the topic keeps no `ack_log`.
    async fn acks(&self, topic: &TopicName, offset: Offset) -> Result<Vec<Ack>>;
}

/// A subscription that an owner serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// The subscription.
    pub subscription_id: SubscriptionId,
    /// What the owner has done for it.
    pub activity: Activity,
}

impl Served {
    /// A subscription for which nothing was done yet.
    pub fn new(subscription_id: SubscriptionId) -> Self {
        Served { subscription_id, activity: Activity::default() }
    }
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// How many leases of other owners ended by it.
    pub ended: u64,
    /// How each subscription is that the owner serves, in their order.
    pub signals: Vec<Signal>,
}

/// How a subscription is, for an owner that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Go on.
    Active,
    /// It was dead and is active again since this heartbeat; this is what it missed.
    Resurrected(MissedMessages),
    /// Hand out nothing until further notice.
    Paused,
    /// Stop: it was cancelled.
    Cancelled,
    /// Stop: there is no such subscription.
    Gone,
}

/// How a subscription came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resurrected {
    /// Whether this call did it; false if it was active already.
    pub resurrected: bool,
    /// Where it goes on.
    pub next: Offset,
    /// What retention removed before it had done it, all told.
    pub missed: MissedMessages,
}

/// Where a cursor was moved, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The first offset never handed out, before.
    pub from: Offset,
    /// And after.
    pub to: Offset,
    /// Stored messages that are handed out again though they were done.
    pub replayed: u64,
    /// Stored messages that are never handed out.
    pub skipped: u64,
    /// Leases that are lost by it.
    pub leases_lost: u64,
}

/// What was given up for a dead subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForceCompleted {
    /// The group.
    pub group: GroupName,
    /// How many messages.
    pub messages: u64,
    /// Everything up to here is done now.
    pub until: Offset,
}

/// Messages of a group that are not done and old.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The group.
    pub group: GroupName,
    /// How many messages.
    pub messages: u64,
    /// When the oldest was published.
    pub oldest: Timestamp,
}

/// A line of the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// When, by the database's clock.
    pub at: Timestamp,
    /// Who, as the store was opened with [`super::OpenOptions::actor`].
    pub actor: String,
    /// What: `pause`, `resume`, `cancel`, `resurrect`, `remove`, `seek`, `alter_topic`, `set_policy`, `release_lease`,
    /// `force_complete`, `backfill`, `cancel_backfill`, `resume_backfill`, `redrive`, `purge`, `set_auto_create`.
    pub act: String,
    /// The topic.
    pub topic: Option<String>,
    /// The group.
    pub group: Option<String>,
    /// The particulars, as a JSON object.
    pub detail: String,
}

/// A line of the ack log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The group.
    pub group: GroupName,
    /// The offsets acked together.
    pub range: OffsetRange,
    /// Who held them.
    pub owner: Owner,
    /// When, by the database's clock.
    pub at: Timestamp,
}

/// A state for the answers of processes.
impl Signal {
    /// The pulse of a stored state.
    pub(crate) fn of(state: SubscriptionState) -> Self {
        match state {
            SubscriptionState::Active | SubscriptionState::Dead => Signal::Active,
            SubscriptionState::Paused => Signal::Paused,
            SubscriptionState::Cancelled => Signal::Cancelled,
        }
    }
}
