//! Reference counting with its completion records, and backfills of groups that came late. Part of the contract of a
//! [`Store`](super::Store). Delivery, retention and life cycle do not depend on it: completion records follow from
//! cursors and outstanding ranges.

use std::fmt;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::backfill::{Backfill, BackfillLimits, BackfillStep};
use crate::error::Result;
use crate::lease::OffsetRange;
use crate::message::Offset;
use crate::name::{GroupName, Owner, TopicName};
use crate::topic::TopicId;

/// Completion records and backfills.
#[async_trait]
pub trait Tracking: fmt::Debug + Send + Sync + 'static {
    /// Brings the completion records of a topic up to date: changes those of at most `messages_max` messages.
    ///
    /// In reference counting: messages without a completion record get one (required: the groups that count and began
    /// at or below it); what groups have done since the last step is added to pending records, what was handed out
    /// again is removed; groups that died or were cancelled are removed from pending records. A record is completed
    /// when `completed` covers `required`, and never changed again. Everything follows from cursors and outstanding
    /// ranges, so running it twice, or after a crash, changes nothing twice. In offset watermark: removes records that
    /// a change of mode has left.
    async fn track(&self, topic: TopicId, messages_max: u32) -> Result<TrackStep>;

    /// The completion records of messages in reference counting, offsets rising, at most 10,000. A message that has no
    /// record yet is shown as its record will be. Empty in offset watermark.
    async fn records(&self, topic: &TopicName, range: OffsetRange) -> Result<Vec<Record>>;

    /// Starts a backfill for a group. In reference counting it adds the group to pending completion records of messages
    /// that existed when the group came, up to an end that is fixed now. In offset watermark there is nothing to do: it
    /// shows the group's progress. Subscribing below the head and a resurrection start one automatically. `Conflict` if
    /// one of the group is under way.
    async fn backfill(
        &self,
        topic: &TopicName,
        group: &GroupName,
        limits: &BackfillLimits,
    ) -> Result<Backfill>;

    /// Cancels a group's backfill at once; what it has done stays. `InvalidTransition` unless it is not started or in
    /// progress.
    async fn cancel_backfill(&self, topic: &TopicName, group: &GroupName) -> Result<Backfill>;

    /// Resumes a cancelled or failed backfill from its checkpoint. `InvalidTransition` otherwise.
    async fn resume_backfill(&self, topic: &TopicName, group: &GroupName) -> Result<Backfill>;

    /// The backfills of all topics, newest first.
    async fn backfills(&self) -> Result<Vec<Backfill>>;

    /// Does one batch of a backfill that is not started or in progress and that no other worker holds: one transaction
    /// with its checkpoint, so that killed workers neither lose nor repeat anything. `None` if there is nothing to do.
    /// A worker without a step for 15 s loses the backfill to another.
    ///
    /// A batch that fails is rolled back, and its error is stored with the backfill, which is returned as failed and waits for an
    /// operator. Only a temporary fault (a lock, a lost connection, a full disk) is an error of the call, to be tried again.
    async fn step_backfill(&self, worker: &Owner, messages_max: u32) -> Result<Option<BackfillStep>>;
}

/// The result of a tracking step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrackStep {
    /// Completion records added.
    pub recorded: u64,
    /// Completion records changed.
    pub changed: u64,
    /// Completion records completed, among the two.
    pub completed: u64,
    /// Completion records that groups which no longer count were released from, among the changed ones.
    pub released: u64,
    /// Completion records removed, after a change of mode.
    pub removed: u64,
    /// Whether there is more to do.
    pub more: bool,
}

/// The completion record of a message in reference counting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The message.
    pub offset: Offset,
    /// The groups it is for, by name.
    pub required: Vec<GroupName>,
    /// Those of them that are done, by name.
    pub completed: Vec<GroupName>,
    /// When the last of them completed it; `None` while it is pending.
    pub completed_at: Option<Timestamp>,
}
