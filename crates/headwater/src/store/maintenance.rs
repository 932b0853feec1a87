//! Maintenance of a store: heads, dead groups, retention, partitions. Part of the contract of a
//! [`Store`](super::Store).
//!
//! Every step is bounded, is one transaction, may be killed at any point, and may be run by any number of processes
//! concurrently: it takes a lock per topic, or finds nothing left to do.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::Tracking;
use crate::error::Result;
use crate::maintenance::{JobRun, JobStatus};
use crate::name::{GroupName, Owner, TopicName};
use crate::subscription::{MissedMessages, SubscriptionStatus};
use crate::topic::{TopicId, TopicStatus};

/// Maintenance, step by step. [`crate::maintenance::Maintenance`] decides when each is due.
#[async_trait]
pub trait Maintenance: Tracking {
    /// Elects or confirms the maintenance process of this namespace for a term. True if it is this one. Another is
    /// elected only once the term has expired, by the database's clock.
    async fn elect(&self, worker: &Owner, term: Duration) -> Result<bool>;

    /// Gives up the term of this process.
    async fn resign(&self, worker: &Owner) -> Result<()>;

    /// All topics by name.
    async fn topics(&self) -> Result<Vec<TopicStatus>>;

    /// One round over all topics: advances heads, hands out late messages, moves scheduled messages that are due into
    /// the log, deletes old dedup keys. Claims do the same on demand for their own topics.
    async fn advance_heads(&self) -> Result<Maintained>;

    /// Declares active subscriptions dead that have been without a heartbeat for longer than their timeout.
    ///
    /// Only where detection ran all the time: if its last run was longer ago than three minutes, or the server was
    /// restarted since, all subscriptions appear silent because heartbeats could not be stored. Then those past their
    /// timeout are suspected, and declared dead by the first run that comes a heartbeat interval later and still finds
    /// them silent. Groups that never had a heartbeat are not affected. Running it twice changes nothing twice.
    async fn detect_dead(&self) -> Result<Detected>;

    /// Removes messages that retention allows to be removed, at most `messages_max`:
    ///
    /// - done for every counting subscription for longer than `message_retention` (in offset watermark: at or below the
    ///   watermark of that time; in reference counting: any message that is done, whatever is pending before it);
    /// - and, if it was published while none counted, older than `zero_subscription_retention`;
    /// - or older than `max_retention`, done or not.
    ///
    /// While no subscription counts, the watermark stays: nothing becomes done, messages that dead subscriptions have
    /// not done are kept until `max_retention`, and new messages are removed once they are older than both
    /// `zero_subscription_retention` and `message_retention`. Without any subscription that is not cancelled, messages
    /// published before count as done.
    ///
    /// Removed messages that a subscription had not done count as missed, for all that are not cancelled, including
    /// dead ones: they are counted, kept in its status, and logged.
    ///
    /// The age of a message that some subscription has not done, or none could, is the time that maintenance observed:
    /// between two readings of the clock at most five minutes count, and none if it went back. So a wrong clock removes
    /// nothing unread, and a pause of maintenance delays removal.
    ///
    /// Never above the head, never in a recorded gap. Never what a concurrent subscribe, seek or redrive is promised.
    async fn clean(&self, topic: TopicId, messages_max: u32) -> Result<CleanStep>;

    /// Creates partitions of a dedicated topic ahead of its head, at least two at its rate, and drops old ones that
    /// retention allows to be dropped. Nothing to do for shared topics and on SQLite.
    async fn keep_partitions(&self, topic: TopicId) -> Result<PartitionStep>;

    /// Moves zombies (dead for longer than `zombie_subscription_ttl`) past removed messages, deletes dead and cancelled
    /// subscriptions older than `older_than` that have done everything stored (of queues only cancelled ones), and
    /// deletes old watermark history, activities of departed processes and dedup keys, and what is left of deleted topics.
    async fn clean_subscriptions(&self, older_than: Duration) -> Result<SubscriptionStep>;

    /// Deletes inbox entries, and entries of the outbox that were published, after their retention: a bounded number of each.
    /// Those that are not published stay, whatever their age.
    async fn clean_entries(&self, retention: &EntryRetention) -> Result<EntryStep>;

    /// Removes processes that ended longer ago than `older_than`, with their logs, and returns how many. A process that has
    /// not ended stays, however old it is.
    async fn clean_processes(&self, older_than: Duration) -> Result<u64>;

    /// A small piece of work like that of an application, to measure how busy the database is: a read, and, where that
    /// does not queue behind maintenance itself, a commit.
    async fn probe(&self) -> Result<()>;

    /// Figures of all groups that are not cancelled and of their topics, for metrics and operators: by topic and group,
    /// at most `groups_max` groups. Also for groups that no process serves. Two bounded queries that lock nothing.
    async fn survey(&self, groups_max: u32) -> Result<Survey>;

    /// The history of each maintenance job.
    async fn jobs(&self) -> Result<Vec<JobStatus>>;

    /// Records runs of jobs: all of them, or none. In one commit, because on SQLite every other writer waits for each.
    async fn jobs_ran(&self, runs: &[JobRun]) -> Result<()>;
}

/// Figures of all groups and topics at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    /// When, by the database's clock.
    pub now: Timestamp,
    /// The groups that are not cancelled, by topic and name.
    pub groups: Vec<SurveyedGroup>,
    /// Groups beyond `groups_max`.
    pub left_out: u64,
    /// All topics by name.
    pub topics: Vec<SurveyedTopic>,
}

/// Figures of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct SurveyedGroup {
    /// Its topic.
    pub topic: TopicName,
    /// Its progress and activity.
    pub status: SubscriptionStatus,
}

/// Figures of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyedTopic {
    /// The topic.
    pub topic: TopicName,
    /// Offsets that every counting group had done `message_retention` ago and that cleanup has not removed. In
    /// reference counting at least these: messages above the watermark may be removable too.
    pub cleanable: u64,
    /// Of the oldest [`RECORDS_EXAMINED`] completion records that may be pending, those that contradict themselves:
    /// pending although every group is done, or the reverse.
    pub inconsistent: u64,
}

/// How many completion records of each topic a survey examines.
pub const RECORDS_EXAMINED: i64 = 1_000;

/// The result of one round over all topics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Scheduled messages moved into their log.
    pub promoted: u64,
    /// Late messages handed to subscriptions.
    pub late: u64,
    /// Gaps closed because their transactions ended without a message.
    pub gaps_closed: u64,
    /// Dedup keys deleted.
    pub dedup_forgotten: u64,
    /// Whether messages were promoted and some that are due are left: a round is bounded in bytes too.
    pub more: bool,
}

/// The result of dead detection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detected {
    /// Subscriptions declared dead now.
    pub died: Vec<(TopicName, GroupName)>,
    /// Subscriptions past their timeout while detection did not run: a later run declares them dead unless a heartbeat
    /// arrives.
    pub suspected: Vec<(TopicName, GroupName)>,
    /// Subscriptions without a heartbeat for four fifths of their timeout.
    pub near_timeout: Vec<(TopicName, GroupName)>,
}

/// The result of a cleanup step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanStep {
    /// Messages removed.
    pub removed: u64,
    /// Of those, what each subscription that is not cancelled had not done.
    pub missed: Vec<(GroupName, MissedMessages)>,
    /// Whether there is more to do.
    pub more: bool,
}

/// Logs messages that were removed unread: that never happens silently.
pub(crate) fn warn_missed(topic: &str, missed: &[(GroupName, MissedMessages)]) {
    for (group, MissedMessages { count, range }) in missed {
        let (first, last) = range.map_or((None, None), |(first, last)| (Some(first.0), Some(last.0)));
        tracing::warn!(%topic, %group, messages = count, first, last, "messages removed unread");
    }
}

/// The result of a step over partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionStep {
    /// Partitions created.
    pub created: u64,
    /// Partitions dropped.
    pub dropped: u64,
    /// Messages dropped with them.
    pub removed: u64,
    /// Of those, what each subscription that is not cancelled had not done.
    pub missed: Vec<(GroupName, MissedMessages)>,
    /// Partitions that begin after the last offset used.
    pub ahead: u64,
    /// Whether a change was postponed because the table was locked.
    pub locked: bool,
}

/// The result of a step over subscriptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionStep {
    /// Dead subscriptions that were moved past removed messages.
    pub zombies: Vec<(TopicName, GroupName)>,
    /// Subscriptions deleted.
    pub deleted: Vec<(TopicName, GroupName)>,
    /// Other rows deleted.
    pub forgotten: u64,
}

/// How long entries are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRetention {
    /// Inbox entries.
    pub inbox: Duration,
    /// Entries of the outbox, after they were published.
    pub outbox: Duration,
}

/// The result of a step over entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryStep {
    /// Inbox entries deleted.
    pub inbox: u64,
    /// Entries of the outbox deleted.
    pub outbox: u64,
    /// Whether there may be more.
    pub more: bool,
}
