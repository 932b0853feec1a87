//! Backfills: adding a group that came late to the completion records of messages published before it.

use std::time::Duration;

use jiff::Timestamp;

use crate::error::{Error, Result};
use crate::limits::DELAY_MAX;
use crate::message::Offset;
use crate::name::{GroupName, TopicName};

pub(crate) mod drive;
pub(crate) mod pace;

pub use pace::BackfillPace;

/// A backfill of more messages than this is left to maintenance; a smaller one is done by the subscribing process.
pub const BACKFILL_INLINE_MAX: u64 = 100_000;
/// The most messages a backfill covers by default.
pub const BACKFILL_MESSAGES_DEFAULT: u64 = 1_000_000;

/// The state of a backfill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackfillState {
    /// Requested.
    NotStarted,
    /// Some of it is done.
    InProgress,
    /// All of it is done.
    Completed,
    /// Stopped by an operator; it can be resumed.
    Cancelled,
    /// Stopped by an error; it can be resumed.
    Failed,
}

impl BackfillState {
    /// Every state.
    pub const ALL: [BackfillState; 5] = [
        BackfillState::NotStarted,
        BackfillState::InProgress,
        BackfillState::Completed,
        BackfillState::Cancelled,
        BackfillState::Failed,
    ];

    /// The name that the stores and the CLI use.
    pub fn as_str(self) -> &'static str {
        match self {
            BackfillState::NotStarted => "not_started",
            BackfillState::InProgress => "in_progress",
            BackfillState::Completed => "completed",
            BackfillState::Cancelled => "cancelled",
            BackfillState::Failed => "failed",
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        BackfillState::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| Error::invalid("backfill state", format!("{text} is unknown")))
    }

    /// Whether it has work left that will be done.
    pub fn is_open(self) -> bool {
        matches!(self, BackfillState::NotStarted | BackfillState::InProgress)
    }
}

/// A backfill and its progress.
#[derive(Clone, Debug, PartialEq)]
pub struct Backfill {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
    /// Its state.
    pub state: BackfillState,
    /// The first offset it covers.
    pub first: Offset,
    /// The last offset, fixed when it was started.
    pub last: Offset,
    /// Everything at or below it is done; after a crash the backfill continues from here.
    pub checkpoint: Offset,
    /// Offsets processed.
    pub processed: u64,
    /// Offsets to process in total.
    pub total: u64,
    /// When it was started.
    pub created_at: Timestamp,
    /// When its checkpoint last moved.
    pub progressed_at: Option<Timestamp>,
    /// Offsets per second over the time it ran.
    pub rate: f64,
    /// The highest allowed rate, in messages per second.
    pub rate_max: u32,
    /// The most messages of a batch, if it has a limit of its own.
    pub batch_max: Option<u32>,
    /// How long a small piece of work of an application may take beside it, if it has a target of its own.
    pub target_latency: Option<Duration>,
    /// Why it failed.
    pub error: Option<String>,
    /// Messages before `first` that the group has not done and that the limit of the backfill left out: their
    /// completion records do not wait for the group. 0 if its limit was not reached.
    pub left_out: u64,
}

impl Backfill {
    /// The estimated time left at its rate; `None` while that is not known, or if it is not open.
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.total.saturating_sub(self.processed);
        let known = self.state.is_open() && self.rate > 0.0;
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        known.then(|| Duration::from_secs_f64((left as f64 / self.rate).min(1e9)))
    }
}

/// The limits of a backfill: how many messages it covers, and how much of the database it may use.
///
/// ```
/// use std::time::Duration;
/// use headwater::store::BackfillLimits;
///
/// let gentle = BackfillLimits::bounded(200_000).rate(5_000).batch(500).target_latency(Duration::from_millis(5));
/// assert_eq!((gentle.messages_max, gentle.rate_max), (200_000, 5_000));
/// assert_eq!(BackfillLimits::default(), BackfillLimits::bounded(1_000_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackfillLimits {
    /// The most messages it covers: the last ones before the group subscribed.
    pub messages_max: u64,
    /// The highest allowed rate, in messages per second.
    pub rate_max: u32,
    /// The most messages of a batch, which is one transaction; `None` leaves it to the pace of maintenance.
    pub batch_max: Option<u32>,
    /// How long a small piece of work of an application may take while it runs; `None` takes the target of the
    /// [pace](BackfillPace) of maintenance.
    pub target_latency: Option<Duration>,
}

impl Default for BackfillLimits {
    fn default() -> Self {
        BackfillLimits::bounded(BACKFILL_MESSAGES_DEFAULT)
    }
}

impl BackfillLimits {
    /// At most the last `messages` before the group subscribed.
    pub fn bounded(messages: u64) -> Self {
        BackfillLimits { messages_max: messages, rate_max: 50_000, batch_max: None, target_latency: None }
    }

    /// All messages before the group subscribed.
    pub fn unlimited() -> Self {
        BackfillLimits::bounded(u64::MAX)
    }

    /// No message before the group subscribed: only for a group that subscribes.
    pub fn none() -> Self {
        BackfillLimits::bounded(0)
    }

    /// At most this many messages per second, 50,000 by default.
    #[must_use]
    pub fn rate(mut self, per_second: u32) -> Self {
        self.rate_max = per_second;
        self
    }

    /// At most this many messages in one transaction.
    #[must_use]
    pub fn batch(mut self, messages: u32) -> Self {
        self.batch_max = Some(messages);
        self
    }

    /// Slows down while a small piece of work of an application takes longer than this.
    #[must_use]
    pub fn target_latency(mut self, latency: Duration) -> Self {
        self.target_latency = Some(latency);
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let positive = [
            ("backfill rate_max", self.rate_max == 0),
            ("backfill batch_max", self.batch_max == Some(0)),
            ("backfill target_latency", self.target_latency.is_some_and(|latency| latency.is_zero())),
        ];
        if let Some((field, _)) = positive.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(Error::invalid(field, "must be above zero"));
        }
        if self.target_latency.is_some_and(|latency| latency > DELAY_MAX) {
            return Err(Error::invalid("backfill target_latency", "longer than 366 days"));
        }
        Ok(())
    }
}

/// The result of one batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BackfillStep {
    /// The backfill after the batch.
    pub backfill: Backfill,
    /// Offsets processed.
    pub processed: u64,
    /// Completion records changed.
    pub changed: u64,
}
