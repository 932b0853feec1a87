//! Administration: topics, groups, dead letters, the audit. Part of the contract of a [`Store`](super::Store).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use super::{CronDescription, SurveyedGroup};
use crate::dead_letter::{DeadLetter, DeadLetterSelection, Redriven};
use crate::error::{Error, Result};
use crate::groups::GroupSelection;
use crate::lease::{LeaseToken, OffsetRange};
use crate::message::{NewMessage, Offset, Published};
use crate::name::{GroupName, Owner, TopicName};
use crate::scheduled::{Reschedule, Scheduled, ScheduledPlace};
use crate::subscription::{
    DeliveryPolicy, MessageAct, MessageState, MissedMessages, Outstanding, Start, SubscriptionId,
    SubscriptionStatus,
};
use crate::topic::{Removal, Topic, TopicContents, TopicSettings, TopicStatus};
use crate::topics::TopicSelection;

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
    /// Existing groups keep their lanes. Settings that are the topic's already change nothing and make no audit entry.
    async fn alter_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic>;

    /// Deletes a topic with everything it holds: messages, scheduled messages, dedup keys, groups, their dead letters,
    /// completion records and ack log. Refused as `InvalidTransition` while a process serves one of its groups, unless it
    /// is forced. Inbox entries stay for their time: they name messages and no topic.
    ///
    /// When this returns the name is free: publishing to it is `NoSuchTopic`, or goes to a new topic of that name, which
    /// has another number and shares nothing with this one. A publish that was acknowledged before is deleted. A publish
    /// in a transaction that is still open is waited for; if the transaction stays open this is `Busy` and nothing is
    /// changed. No publish is acknowledged and then lost: it is in the topic before the deletion, or fails. Leases are
    /// lost at once, consumers are woken and find that their subscription is gone, and a cron job for the topic fails at
    /// its next tick, or creates the topic again where publishing does.
    ///
    /// The topic is gone in one transaction, with its audit entry. What it stored is then removed in bounded steps;
    /// after a crash maintenance removes the rest.
    async fn delete_topic(&self, topic: &TopicName, removal: Removal) -> Result<TopicContents>;

    /// Removes all messages that are committed when it is called, and keeps the topic with its groups: each continues
    /// with what is published next. Refused as `InvalidTransition` while a process serves one of its groups, unless it is
    /// forced.
    ///
    /// Leases are lost and retries are dropped. The messages were given up on purpose: they count as done and not as
    /// missed. Scheduled messages, dead letters and dedup keys stay. A message whose transaction commits after the call
    /// is delivered, whatever its offset.
    ///
    /// The groups are moved in one transaction, with its audit entry; the messages are then removed in bounded steps. If
    /// a crash interrupts the steps, retention removes the rest, or a repeated call.
    async fn purge_topic(&self, topic: &TopicName, removal: Removal) -> Result<TopicContents>;

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

    /// The topics of a selection by name, with their progress, at most `limit`.
    async fn find_topics(&self, selection: &TopicSelection, limit: u32) -> Result<Vec<TopicStatus>>;

    /// The subscriptions of a selection, of all topics, by topic and group, at most `limit`, and the database's time. Of one name
    /// the one that is not cancelled is first, then the cancelled ones, newest first. One bounded query that locks nothing.
    async fn find_subscriptions(
        &self,
        selection: &GroupSelection,
        limit: u32,
    ) -> Result<(Timestamp, Vec<SurveyedGroup>)>;

    /// The outstanding ranges of a subscription: leased, waiting for a time, parked. At most `limit`, oldest due first;
    /// leases that never expire come late, and parked ranges last, since they wait for other messages and not for a
    /// time. Reads only, so the result may be outdated. Empty for an unknown subscription.
    async fn outstanding(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<Outstanding>>;

    /// Pauses an active subscription; from any other state it is `InvalidTransition`. Delivery stops in every process
    /// as soon as this returned. Consumers that wait for the topic are woken, so that they release messages they have
    /// not started. Nothing is lost. The reason is in the status until the subscription leaves the state, and in the
    /// audit.
    async fn pause(&self, topic: &TopicName, group: &GroupName, reason: Option<&str>) -> Result<()>;

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

    /// The state of a message in each subscription that is not cancelled, by group. `InvalidInput` if no message is stored
    /// at the offset. Reads only, so the result may be outdated.
    async fn message_states(
        &self,
        topic: &TopicName,
        offset: Offset,
    ) -> Result<Vec<(GroupName, MessageState)>>;

    /// Skips, buries or retries one message of a group. Only that message changes: its neighbours in a range stay as they
    /// are, and what is before a message that was not handed out yet is handed out next. In an ordered subscription the
    /// followers of its key are released. Waiters are woken.
    ///
    /// `InvalidTransition` if its state does not allow it, and while it is leased unless that is forced: then the whole
    /// lease ends, as by [`Admin::release_lease`]. `InvalidInput` if no message is stored at the offset, `Busy` if its
    /// offset is not final yet.
    async fn act_on_message(
        &self,
        topic: &TopicName,
        group: &GroupName,
        offset: Offset,
        act: &MessageAct,
        force: bool,
    ) -> Result<()>;

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

    /// How many dead letters of a selection a redrive would hand out, and how many have lost their message.
    async fn count_dead_letters(&self, selection: &DeadLetterSelection) -> Result<Redriven>;

    /// Publishes an edited copy of a dead letter to its topic and deletes the dead letter, in one transaction. The copy is
    /// a new message, for every group: with other groups that are not cancelled it is `InvalidInput` unless `all_groups`
    /// is set. `InvalidInput` if the subscription has no such dead letter, `InvalidTransition` if it is cancelled; what a
    /// publish refuses is refused as there. Concurrent calls publish one copy.
    async fn replace_dead_letter(
        &self,
        subscription: SubscriptionId,
        id: Uuid,
        message: &NewMessage,
        all_groups: bool,
    ) -> Result<Published>;

    /// Hands dead letters to their subscription again, to no other: due now, without attempts, not suspect, and in an
    /// ordered subscription before later messages of their key. A dead letter is deleted and its message becomes
    /// outstanding in one transaction, a bounded number at a time, so redriving twice, also concurrently, delivers
    /// once. Dead letters whose message is no longer in the log stay and are counted. Messages buried meanwhile are not
    /// part of it.
    async fn redrive(&self, selection: &DeadLetterSelection) -> Result<Redriven>;

    /// Deletes dead letters permanently, a bounded number at a time; returns how many.
    async fn purge(&self, selection: &DeadLetterSelection) -> Result<u64>;

    /// The scheduled messages of a topic, by their time and then in the order published, at most `limit`. Reads only.
    async fn scheduled(&self, topic: &TopicName, limit: u32) -> Result<Vec<Scheduled>> {
        self.scheduled_after(topic, None, limit).await
    }

    /// The same, of those after this place.
    async fn scheduled_after(
        &self,
        topic: &TopicName,
        after: Option<ScheduledPlace>,
        limit: u32,
    ) -> Result<Vec<Scheduled>>;

    /// Cancels the scheduled messages of a topic with this id. True: they are never delivered, and no longer count as the
    /// first ones with their dedup keys. False: there is none, or it has been delivered. Never both, whatever delivers at the same
    /// moment.
    async fn cancel_scheduled(&self, topic: &TopicName, message_id: Uuid) -> Result<bool>;

    /// Moves the scheduled messages of a topic with this id to another time, and wakes waiters; a time that has passed
    /// delivers them at once. True and false as for [`Admin::cancel_scheduled`]. More than 366 days from now is
    /// `InvalidInput`.
    async fn reschedule(&self, topic: &TopicName, message_id: Uuid, to: Reschedule) -> Result<bool>;

    /// All cron jobs that were ever started on this store, by name.
    async fn cron_jobs(&self) -> Result<Vec<CronStatus>>;

    /// The changes that operators made, newest first, at most `limit`.
    async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>> {
        self.audit_before(i64::MAX, limit).await
    }

    /// The same, of those before the entry of this number.
    async fn audit_before(&self, audit_id: i64, limit: u32) -> Result<Vec<AuditEntry>>;

    /// Adds an audit entry for an act that has none of its own. `detail` is a JSON object.
    async fn note(
        &self,
        act: &str,
        topic: Option<&str>,
        group: Option<&str>,
        detail: &serde_json::Value,
    ) -> Result<()>;

    /// Which owners acked the message at an offset, oldest first. Empty where the topic keeps no `ack_log`.
    async fn acks(&self, topic: &TopicName, offset: Offset) -> Result<Vec<Ack>>;

    /// Checks the invariants of everything stored. An empty result means that the store is sound.
    async fn doctor(&self) -> Result<Vec<Finding>>;

    /// Removes everything of this namespace permanently, and closes the store.
    async fn drop_namespace(&self) -> Result<()>;

    /// Stops background work and closes the connections. Further calls are `Closed`.
    async fn close(&self) -> Result<()>;

    /// Whether it was closed; [`super::Checked`] answers it for its engine.
    fn is_closed(&self) -> bool {
        false
    }

    /// The actor of changes, if it is not the engine's own; [`super::Checked`] answers it for its engine.
    fn caller(&self) -> Option<&Arc<str>> {
        None
    }
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
/// | `delete_topic` | `messages`, `scheduled`, `groups`, `dead_letters`, `leases_lost`: how many |
/// | `purge_topic` | `until`: the last offset that was removed; `messages`, `groups`, `leases_lost`: how many |
/// | `set_auto_create` | `auto_create` |
/// | `pause` | `from`, `to`, `leases_lost`, and `reason` if there is one |
/// | `resume`, `cancel` | `from`, `to`, `leases_lost` |
/// | `resurrect` | `behind_max`, `next`, `missed` |
/// | `remove` | `subscriptions`, `dead_letters`: how many |
/// | `seek` | `from`, `to`, `replayed`, `skipped`, `leases_lost` |
/// | `set_policy` | the policy |
/// | `release_lease` | `token`, `owner`, `first`, `last` |
/// | `skip_message`, `bury_message`, `retry_message` | `offset`, `from`: its state before; `owner` if a lease was ended, else null |
/// | `force_complete` | `older_than_ms`; `groups`: how many messages of each; `until`, null if there were none |
/// | `backfill` | `first`, `last`, `messages_max`, `rate_max`; `batch_max` and `target_latency_ms`, null for those of maintenance |
/// | `cancel_backfill`, `resume_backfill` | `checkpoint` |
/// | `cancel_scheduled` | `message_id`, `deliver_at_ms` |
/// | `reschedule` | `message_id`, `from_ms`, `to_ms` |
/// | `create_topic` | every setting, by a server |
/// | `subscribe` | `next`, by a server |
/// | `pause_process`, `resume_process`, `retry_process`, `fail_process` | `process`, `type`, `reason` or null, by a server |
/// | `run_maintenance` | `jobs`, by a server |
/// | `deny` | `kind`, `count`; `scope`, `peer`, `method`, `path` unless the kind is `others`; by a server |
/// | `redrive` | `redriven`; `gone`, if they were of one group |
/// | `purge` | `purged` |
/// | `delete_dead_letters` | `deleted`: how many, of any source |
/// | `requeue` | `requeued`: how many entries of the outbox |
/// | `add_relay` | `relay`, `source`, `target` |
/// | `remove_relay` | `relay` |
/// | `create_token` | `token`, `id`, `scopes`, `topics` |
/// | `rotate_token` | `token`, `id`, `grace_ms` |
/// | `revoke_token` | `token`, `id` |
/// | `start_session` | `token`, `id`: of the token |
/// | `replace_dead_letter` | `dead_letter`, `from`: the offset of the original; `offset`, `message_id` of the copy |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number: later entries have higher ones.
    pub audit_id: i64,
    /// When, by the database's clock.
    pub at: Timestamp,
    /// Who: the [`super::OpenOptions::actor`] that the store was opened with, or the one of
    /// [`Headwater::acting_as`](crate::Headwater::acting_as).
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

/// A cron job as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronStatus {
    /// Its name.
    pub job: String,
    /// What it does, by the process that started it last; `None` if no process described it.
    pub description: Option<CronDescription>,
    /// When it was last started, by the database's clock.
    pub started_at: Option<Timestamp>,
    /// The last tick that was fired, or the time from which ticks count.
    pub last_tick: Timestamp,
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
