//! Administration: topics, groups, dead letters, the audit. Part of the contract of a [`Store`](super::Store).

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

/// Administration of topics, subscriptions and the store itself.
///
/// Every change by an operator is one transaction with its audit entry, which cannot be changed.
#[async_trait]
pub trait Admin: fmt::Debug + Send + Sync + 'static {
    /// The engine's name: `sqlite` or `postgres`.
    fn engine(&self) -> &'static str;

    /// Creates a topic, or returns the existing one. Safe when many processes do it concurrently; a topic with other
    /// settings is a `Conflict` and is not changed.
    async fn create_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic>;

    /// Changes a topic's settings. Everything can be changed while the topic is in use, with two exceptions that are
    /// `InvalidInput`: `pub_sub` becomes `queue` only with at most one group, and `storage` changes only while no
    /// message is stored. A change of `tracking` is carried out by maintenance: see [`super::Tracking::track`].
    /// Existing groups keep their lanes.
    async fn alter_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic>;

    /// Whether publishes in plain SQL, and programs that do not set [`super::OpenOptions::auto_create`], create topics
    /// from now on; running programs keep the value they read. Only SQLite stores it; on PostgreSQL it is
    /// `InvalidInput`.
    async fn set_auto_create(&self, _: bool) -> Result<()> {
        let why = "not stored by this engine; set it when opening the store; plain SQL creates no topic";
        Err(Error::invalid("auto_create", why))
    }

    /// The topic of this name, or `NoSuchTopic`.
    async fn topic(&self, name: &TopicName) -> Result<Topic>;

    /// The subscriptions of a topic, by group; cancelled ones too, until they are removed. Of one name the one that is
    /// not cancelled is first, then the cancelled ones, newest first.
    async fn subscriptions(&self, topic: &TopicName) -> Result<Vec<SubscriptionStatus>>;

    /// The outstanding ranges of a subscription: leased, waiting for a time, parked. At most `limit`, oldest due first;
    /// leases that never expire come late, and parked ranges last, since they wait for other messages and not for a
    /// time. Reads only, so the result may be outdated. Empty for an unknown subscription.
    async fn outstanding(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<Outstanding>>;

    /// Pauses an active subscription; from any other state it is `InvalidTransition`. Delivery stops in every process
    /// as soon as this returned. Consumers that wait for the topic are woken, so that they release messages they have
    /// not started. Nothing is lost.
    async fn pause(&self, topic: &TopicName, group: &GroupName) -> Result<()>;

    /// Resumes a paused subscription; from any other state it is `InvalidTransition`. Wakes as a pause does.
    async fn resume(&self, topic: &TopicName, group: &GroupName) -> Result<()>;

    /// Cancels a subscription permanently; `InvalidTransition` if it is cancelled already. Its leases are lost at once,
    /// it no longer counts, and it is released from the completion records as [`super::Tracking::track`] describes.
    /// Wakes as a pause does.
    async fn cancel(&self, topic: &TopicName, group: &GroupName) -> Result<()>;

    /// Deletes a cancelled subscription with everything of its own: cursors, ranges, dead letters. Only once it is
    /// released from the completion records; until then, and in any other state, it is `InvalidTransition`.
    async fn remove(&self, topic: &TopicName, group: &GroupName) -> Result<()>;

    /// Makes a dead subscription active again: at its cursor, or at most `behind_max` messages behind the head.
    /// Messages that retention removed meanwhile are reported as missed. Of many concurrent calls one resurrects it;
    /// the others find it active, change nothing and return `resurrected` as false. Paused and cancelled are
    /// `InvalidTransition`.
    async fn resurrect(
        &self,
        topic: &TopicName,
        group: &GroupName,
        behind_max: Option<u64>,
    ) -> Result<Resurrected>;

    /// Moves a subscription's cursor. Its outstanding ranges are dropped and its leases are lost; its dead letters
    /// stay. Messages in between are handed out again, or never. With `dry_run` nothing is changed and the result shows
    /// what would be. Cancelled is `InvalidTransition`.
    async fn seek(&self, topic: &TopicName, group: &GroupName, to: Start, dry_run: bool) -> Result<Moved>;

    /// Sets a delivery policy for a group.
    async fn set_policy(&self, topic: &TopicName, group: &GroupName, policy: &DeliveryPolicy) -> Result<()>;

    /// The delivery policy of a group. Cancelled is `NoSuchSubscription`.
    async fn policy(&self, topic: &TopicName, group: &GroupName) -> Result<DeliveryPolicy>;

    /// Ends a lease by hand, whichever owner holds it: it is handed out again at once, and no attempt is counted.
    /// `LeaseLost` if no lease has that token, or it is past its deadline.
    async fn release_lease(&self, token: LeaseToken) -> Result<()>;

    /// For dead subscriptions, gives up messages that only they have not done and that were published longer ago than
    /// `older_than`: their cursors move past these, which count as missed. With `dry_run` nothing is changed.
    async fn force_complete(
        &self,
        topic: &TopicName,
        older_than: Duration,
        dry_run: bool,
    ) -> Result<Vec<ForceCompleted>>;

    /// How many messages published longer ago than `older_than` each counting group has not done; only groups with at
    /// least one.
    async fn stuck(&self, topic: &TopicName, older_than: Duration) -> Result<Vec<Stuck>>;

    /// The dead letters of a selection, oldest first, at most `limit`.
    async fn dead_letters(&self, selection: &DeadLetterSelection, limit: u32) -> Result<Vec<DeadLetter>>;

    /// Hands dead letters to their subscription again, to no other: due now, without attempts, not suspect, and in an
    /// ordered subscription before later messages of their key. A dead letter is deleted and its message becomes
    /// outstanding in one transaction, a bounded number at a time, so redriving twice, also concurrently, delivers
    /// once. Dead letters whose message is no longer in the log stay and are counted. Messages buried meanwhile are not
    /// part of it.
    async fn redrive(&self, selection: &DeadLetterSelection) -> Result<Redriven>;

    /// Deletes dead letters permanently, a bounded number at a time; returns how many.
    async fn purge(&self, selection: &DeadLetterSelection) -> Result<u64>;

    /// The changes that operators made, newest first, at most `limit`.
    async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>>;

    /// Which owners acked the message at an offset, oldest first. Empty where the topic keeps no `ack_log`.
    async fn acks(&self, topic: &TopicName, offset: Offset) -> Result<Vec<Ack>>;

    /// Checks the invariants of everything stored. An empty result means that the store is sound.
    async fn doctor(&self) -> Result<Vec<Finding>>;

    /// Removes everything of this namespace permanently, and closes the store.
    async fn drop_namespace(&self) -> Result<()>;

    /// Stops background work and closes the connections. Further calls are `Closed`.
    async fn close(&self) -> Result<()>;
}

/// The result of a resurrection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resurrected {
    /// Whether this call resurrected it; false if it was active already.
    pub resurrected: bool,
    /// Its cursor.
    pub next: Offset,
    /// All messages so far that retention removed before the subscription had done them.
    pub missed: MissedMessages,
}

/// The result of a seek, or of its dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The cursor before.
    pub from: Offset,
    /// The cursor after.
    pub to: Offset,
    /// Stored messages that are handed out again although they were done.
    pub replayed: u64,
    /// Stored messages that are never handed out.
    pub skipped: u64,
    /// Leases that are lost.
    pub leases_lost: u64,
}

/// Messages given up for a dead subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForceCompleted {
    /// The group.
    pub group: GroupName,
    /// How many messages.
    pub messages: u64,
    /// Everything up to here is done now.
    pub until: Offset,
}

/// Old messages that a group has not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The group.
    pub group: GroupName,
    /// How many messages.
    pub messages: u64,
    /// When the oldest was published.
    pub oldest: Timestamp,
}

/// An audit entry.
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
    /// Who: the [`super::OpenOptions::actor`] that the store was opened with.
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

/// An entry of the ack log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The group.
    pub group: GroupName,
    /// The offsets acked together.
    pub range: OffsetRange,
    /// The owner that acked them.
    pub owner: Owner,
    /// When, by the database's clock.
    pub at: Timestamp,
}

/// A problem found in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which check found it.
    pub check: &'static str,
    /// What is wrong, with names.
    pub problem: String,
    /// How to repair it.
    pub remedy: String,
}
