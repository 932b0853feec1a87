//! Backfills: bringing a late joiner into the records of messages that were there before it.

use std::time::Duration;

use jiff::Timestamp;

use crate::error::{Error, Result};
use crate::message::Offset;
use crate::name::{GroupName, TopicName};

pub(crate) mod drive;
pub(crate) mod pace;

pub use pace::BackfillPace;

/// Above so many messages a backfill is left to maintenance; below, whoever subscribes does it.
pub const BACKFILL_INLINE_MAX: u64 = 100_000;
/// The most messages a backfill covers unless told otherwise.
pub const BACKFILL_MESSAGES_DEFAULT: u64 = 1_000_000;

/// Where a backfill is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackfillState {
    /// Asked for.
    NotStarted,
    /// Some of it is done.
    InProgress,
    /// All of it is done.
    Completed,
    /// Stopped on purpose; it can be resumed.
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

    /// The word the stores and the CLI use.
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

    /// Whether there is work left that will be done.
    pub fn is_open(self) -> bool {
        matches!(self, BackfillState::NotStarted | BackfillState::InProgress)
    }
}

/// A backfill and how far it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Backfill {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
    /// Where it is.
    pub state: BackfillState,
    /// The first offset it covers.
    pub first: Offset,
    /// The last, fixed when it was started.
    pub last: Offset,
    /// Everything at or below it is done; from here it goes on after a crash.
    pub checkpoint: Offset,
    /// Offsets dealt with.
    pub processed: u64,
    /// Of so many.
    pub total: u64,
    /// When it was started.
    pub created_at: Timestamp,
    /// When its checkpoint last moved.
    pub progressed_at: Option<Timestamp>,
    /// Offsets a second over the time it ran.
    pub rate: f64,
    /// How fast it may go at most, in messages a second.
    pub rate_max: u32,
    /// Why it failed.
    pub error: Option<String>,
}

impl Backfill {
    /// How long it will take at its rate; `None` while that is not known, or if it is not under way.
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.total.saturating_sub(self.processed);
        let known = self.state.is_open() && self.rate > 0.0;
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        known.then(|| Duration::from_secs_f64((left as f64 / self.rate).min(1e9)))
    }
}

/// What a backfill may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackfillLimits {
    /// The most messages it covers: the last ones before the group came.
    pub messages_max: u64,
    /// The fastest it may go, in messages a second.
    pub rate_max: u32,
}

impl Default for BackfillLimits {
    fn default() -> Self {
        BackfillLimits { messages_max: BACKFILL_MESSAGES_DEFAULT, rate_max: 50_000 }
    }
}

/// What one batch did.
#[derive(Clone, Debug, PartialEq)]
pub struct BackfillStep {
    /// The backfill after it.
    pub backfill: Backfill,
    /// Offsets dealt with.
    pub processed: u64,
    /// Records changed.
    pub changed: u64,
}
