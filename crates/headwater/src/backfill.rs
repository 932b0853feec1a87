//! Backfills: adding a group that came late to the completion records of messages published before it.

use std::time::Duration;

use jiff::Timestamp;

use crate::error::{Error, Result};
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
    /// Why it failed.
    pub error: Option<String>,
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

/// The limits of a backfill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackfillLimits {
    /// The most messages it covers: the last ones before the group subscribed.
    pub messages_max: u64,
    /// The highest allowed rate, in messages per second.
    pub rate_max: u32,
}

impl Default for BackfillLimits {
    fn default() -> Self {
        BackfillLimits { messages_max: BACKFILL_MESSAGES_DEFAULT, rate_max: 50_000 }
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
