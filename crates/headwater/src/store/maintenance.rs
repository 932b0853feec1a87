//! What keeps a store in shape: heads, deaths, retention, partitions. Part of the contract of a
//! [`Store`](super::Store).
//!
//! Every step is bounded, is one transaction, may be killed at any point, and may be run by any number of processes at
//! once: it takes a lock on the topic's extent, or finds nothing left to do.

use std::time::Duration;

use async_trait::async_trait;

use super::Tracking;
use crate::error::Result;
use crate::maintenance::{JobRun, JobStatus};
use crate::name::{GroupName, Owner, TopicName};
use crate::subscription::MissedMessages;
use crate::topic::{TopicId, TopicStatus};

/// Maintenance, step by step. [`crate::maintenance::Maintenance`] decides when each is due.
#[async_trait]
pub trait Maintenance: Tracking {
    /// Elects or confirms the worker of this namespace for a term. True if it is this one. Another is elected only once
    /// the term has run out, by the database's clock.
    async fn elect(&self, worker: &Owner, term: Duration) -> Result<bool>;

    /// The worker gives up its term.
    async fn resign(&self, worker: &Owner) -> Result<()>;

    /// All topics by name.
    async fn topics(&self) -> Result<Vec<TopicStatus>>;

    /// One round over all topics: advances heads, hands out late rows, promotes due messages, forgets old dedup keys
    /// and inbox entries.
    /// Claims do the same on demand for their own topics.
    async fn advance_heads(&self) -> Result<Maintained>;

    /// Declares dead what is active and has been silent for longer than its timeout.
    ///
    /// Only where somebody was watching: if the last look was longer ago than three minutes, or the server was restarted
    /// since, everybody looks silent because nobody could speak. Then those past their timeout are suspected, and
    /// die at the first look that comes a heartbeat interval later and still finds them silent. Groups that never
    /// had a heartbeat are left alone. Running it twice changes nothing twice.
    async fn detect_dead(&self) -> Result<Detected>;

    /// Removes what retention allows, at most so many messages:
    ///
    /// - done for every counting subscription for longer than `message_retention` (in offset watermark: at or below what
    ///   the watermark was then; in reference counting: any message that is done, whatever is pending before it);
    /// - and, if it was published while none counted, older than `zero_subscription_retention`;
    /// - or older than `max_retention`, done or not.
    ///
    /// While no subscription counts the watermark stays: nothing becomes done, what dead subscriptions have not done
    /// waits for `max_retention`, and what is published goes once it is older than both `zero_subscription_retention`
    /// and `message_retention`. Without any subscription that is not cancelled, what was published before counts as done.
    ///
    /// What subscriptions that are not cancelled, dead ones too, had not done of it they have missed: it is counted, kept in
    /// their status, and logged.
    ///
    /// The age of what some subscription has not done, or none could, is the time that maintenance saw pass: between two
    /// readings of the clock at most five minutes count, and none if it went back. So a wrong clock removes nothing
    /// unread, and a pause of maintenance delays it.
    ///
    /// Never above the head, never in a noted gap. Never what a subscribe, seek or redrive that happens at the same
    /// moment is promised.
    async fn clean(&self, topic: TopicId, messages_max: u32) -> Result<CleanStep>;

    /// Creates partitions of a dedicated topic ahead of its end, two at least at its rate, and drops those behind that
    /// retention allows. Nothing to do for shared topics and on the embedded file.
    async fn keep_partitions(&self, topic: TopicId) -> Result<PartitionStep>;

    /// Lets zombies (`zombie_subscription_ttl`) give up what they hold of removed messages, deletes dead and cancelled
    /// subscriptions older than `older_than` with nothing stored that they have not done (of queues only cancelled
    /// ones), forgets old marks, activities of vanished processes, and old inbox and
    /// dedup entries.
    async fn clean_subscriptions(&self, older_than: Duration) -> Result<SubscriptionStep>;

    /// A small piece of work as applications do them, to see how busy the database is: a read, and where it does not
    /// queue behind upkeep itself, a commit.
    async fn probe(&self) -> Result<()>;

    /// How each job of upkeep has been doing.
    async fn jobs(&self) -> Result<Vec<JobStatus>>;

    /// Records that a job was run.
    async fn job_ran(&self, run: &JobRun) -> Result<()>;
}

/// What one round over all topics did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Delayed messages promoted into their log.
    pub promoted: u64,
    /// Late rows handed to subscriptions.
    pub late: u64,
    /// Gaps closed because their owners ended without a row.
    pub gaps_closed: u64,
    /// Dedup keys forgotten.
    pub dedup_forgotten: u64,
    /// Inbox entries forgotten.
    pub inbox_forgotten: u64,
}

/// What a look for the dead found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detected {
    /// Those that died now.
    pub died: Vec<(TopicName, GroupName)>,
    /// Those past their timeout while nobody was watching: they die at a later look, or speak up.
    pub suspected: Vec<(TopicName, GroupName)>,
    /// Those silent for four fifths of their timeout.
    pub near_timeout: Vec<(TopicName, GroupName)>,
}

/// What a step of cleanup did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanStep {
    /// Messages removed.
    pub removed: u64,
    /// Of those, what each subscription that is not cancelled had not done.
    pub missed: Vec<(GroupName, MissedMessages)>,
    /// Whether there is more to do.
    pub more: bool,
}

/// What was removed unread is never removed silently.
pub(crate) fn warn_missed(topic: &str, missed: &[(GroupName, MissedMessages)]) {
    for (group, MissedMessages { count, range }) in missed {
        let (first, last) = range.map_or((None, None), |(first, last)| (Some(first.0), Some(last.0)));
        tracing::warn!(%topic, %group, messages = count, first, last, "messages removed unread");
    }
}

/// What a step over partitions did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionStep {
    /// Partitions created.
    pub created: u64,
    /// Partitions dropped.
    pub dropped: u64,
    /// Messages that went with them.
    pub removed: u64,
    /// Of those, what each subscription that is not cancelled had not done.
    pub missed: Vec<(GroupName, MissedMessages)>,
    /// Partitions that begin after the last offset taken.
    pub ahead: u64,
    /// Whether something had to be left for later because the table was locked.
    pub locked: bool,
}

/// What a step over subscriptions did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionStep {
    /// Dead subscriptions that gave up what they held of removed messages.
    pub zombies: Vec<(TopicName, GroupName)>,
    /// Subscriptions deleted.
    pub deleted: Vec<(TopicName, GroupName)>,
    /// Rows of other things forgotten.
    pub forgotten: u64,
}
