//! What operators ask of a store: topics, groups, dead letters, the audit. Part of the contract of a [`Store`](super::Store).

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::dead_letter::{DeadLetter, DeadLetterSelection, Redriven};
use crate::error::{Error, Result};
use crate::lease::{LeaseToken, OffsetRange};
use crate::message::Offset;
use crate::name::{GroupName, Owner, TopicName};
use crate::subscription::{
    DeliveryPolicy, MissedMessages, Outstanding, Start, SubscriptionId, SubscriptionStatus,
};
use crate::topic::{Topic, TopicSettings};

/// The life of topics and subscriptions, and of the store itself.
///
/// Every act of an operator is one transaction with its line in the audit, which nobody may change.
#[async_trait]
pub trait Admin: fmt::Debug + Send + Sync + 'static {
    /// The engine's name: `sqlite` or `postgres`.
    fn engine(&self) -> &'static str;

    /// Creates a topic, or returns the one that is there. Safe when many processes do it at once; a topic with other
    /// settings is a `Conflict` and stays as it is.
    async fn create_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic>;

    /// Changes a topic's settings. Everything can be changed while messages flow, with two exceptions that are
    /// `InvalidInput`: `pub_sub` becomes `queue` only with at most one group, and `storage` changes only while
    /// no message is stored. Changed `tracking` is brought about by maintenance: see [`super::Tracking::track`].
    /// Groups that exist keep their lanes.
    async fn alter_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic>;

    /// Whether publishes in plain SQL, and programs whose [`super::OpenOptions::auto_create`] says nothing, create topics from
    /// now on; programs that are running keep what they found. Only the embedded store keeps that; elsewhere it is
    /// `InvalidInput`.
    async fn set_auto_create(&self, _: bool) -> Result<()> {
        let why = "this database keeps none: each program says so when it opens the store, and plain SQL creates no topic";
        Err(Error::invalid("auto_create", why))
    }

    /// The topic of this name, or `NoSuchTopic`.
    async fn topic(&self, name: &TopicName) -> Result<Topic>;

    /// The subscriptions of a topic, by group; cancelled ones too, until they are removed. Of one name the living one is
    /// first, then the cancelled ones, the last made first.
    async fn subscriptions(&self, topic: &TopicName) -> Result<Vec<SubscriptionStatus>>;

    /// What a subscription has handed out and is not done: leased, waiting for a time, parked. At most `limit`, oldest due
    /// first; what never ends by itself comes late, and what is parked last, since it waits for others and not for a
    /// time. Reads only, so what it tells may have changed meanwhile. Nothing for an unknown subscription.
    async fn outstanding(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<Outstanding>>;

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

    /// Moves a subscription's cursor. Everything it has outstanding is forgotten and its leases are lost; its dead
    /// letters stay. What lies between is handed out again, or never. With `dry_run` nothing is changed and the
    /// answer tells what would be. Cancelled is `InvalidTransition`.
    async fn seek(&self, topic: &TopicName, group: &GroupName, to: Start, dry_run: bool) -> Result<Moved>;

    /// Gives a group a delivery policy of its own.
    async fn set_policy(&self, topic: &TopicName, group: &GroupName, policy: &DeliveryPolicy) -> Result<()>;

    /// The delivery policy a group was given. Cancelled is `NoSuchSubscription`.
    async fn policy(&self, topic: &TopicName, group: &GroupName) -> Result<DeliveryPolicy>;

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

    /// The dead letters of a selection, oldest first, at most `limit`.
    async fn dead_letters(&self, selection: &DeadLetterSelection, limit: u32) -> Result<Vec<DeadLetter>>;

    /// Hands dead letters to their subscription again, to no other: due now, without attempts, not suspect, and of an
    /// ordered subscription before later messages of their key. A letter goes and its message becomes outstanding in
    /// one transaction, a bounded number at a time, so redriving twice, also at once, delivers once. Those whose
    /// message is not in the log any more stay and are counted. What is buried meanwhile is not part of it.
    async fn redrive(&self, selection: &DeadLetterSelection) -> Result<Redriven>;

    /// Removes dead letters for good, a bounded number at a time; how many.
    async fn purge(&self, selection: &DeadLetterSelection) -> Result<u64>;

    /// What was done by operators, newest first, at most `limit`.
    async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>>;

    /// Who acked the message at an offset, oldest first. Nothing where the topic keeps no `ack_log`.
    async fn acks(&self, topic: &TopicName, offset: Offset) -> Result<Vec<Ack>>;

    /// Checks the invariants of everything stored. An empty answer means that nothing is off.
    async fn doctor(&self) -> Result<Vec<Finding>>;

    /// Removes everything of this namespace, for good, and closes the store.
    async fn drop_namespace(&self) -> Result<()>;

    /// Stops background work and lets go of connections. Further calls are `Closed`.
    async fn close(&self) -> Result<()>;
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
///
/// | act | its particulars |
/// |---|---|
/// | `alter_topic` | each setting that changed, with `from` and `to` |
/// | `set_auto_create` | `auto_create` |
/// | `pause`, `resume`, `cancel` | `from`, `to`, `leases_lost` |
/// | `resurrect` | `behind_max`, `next`, `missed` |
/// | `remove` | `subscriptions`, `dead_letters`: how many |
/// | `seek` | `from`, `to`, `replayed`, `skipped`, `leases_lost` |
/// | `set_policy` | the policy |
/// | `release_lease` | `token`, `owner`, `first`, `last` |
/// | `force_complete` | `older_than_ms`, `until`, `groups`: how many messages of each |
/// | `backfill` | `first`, `last`, `messages_max`, `rate_max` |
/// | `cancel_backfill`, `resume_backfill` | `checkpoint` |
/// | `redrive` | `redriven`, `gone` |
/// | `purge` | `purged` |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// When, by the database's clock.
    pub at: Timestamp,
    /// Who, as the store was opened with [`super::OpenOptions::actor`].
    pub actor: String,
    /// What, as in the table.
    pub act: String,
    /// The topic.
    pub topic: Option<String>,
    /// The group.
    pub group: Option<String>,
    /// The particulars, as a JSON object: the same on every engine.
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

/// Something that is off in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which check found it.
    pub check: &'static str,
    /// What is off, with identity.
    pub problem: String,
    /// What would mend it.
    pub remedy: String,
}
