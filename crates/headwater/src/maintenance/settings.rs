//! How often jobs run and how much they do at a time: presets, and each value by itself.

use std::time::Duration;

use super::Job;
use crate::backfill::BackfillPace;
use crate::error::{Error, Result};
use crate::limits::{
    INBOX_RETENTION, MAINTENANCE_MESSAGES_MAX, OUTBOX_RETENTION, PROCESS_RETENTION, RETENTION_MAX,
    SUBSCRIPTION_RETENTION,
};
use crate::store::EntryRetention;
use crate::topic::written;

/// A named choice of how often jobs run and how much they do at a time; `docs/operations.md` has the values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MaintenancePreset {
    /// For most installations: the intervals in [`Job`].
    #[default]
    Standard,
    /// Longer intervals, smaller batches, longer pauses between them.
    LowThroughput,
    /// Cleanup every minute, almost no pause between batches.
    HighThroughput,
    /// Shorter intervals of dead detection and cleanup.
    Critical,
}

/// How often jobs run and how much they do at a time: those of a preset, with single values changed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use std::time::Duration;
/// use headwater::maintenance::{Job, MaintenancePreset, MaintenanceSettings};
/// use headwater::{Headwater, OpenOptions};
///
/// let settings = MaintenanceSettings::preset(MaintenancePreset::HighThroughput)
///     .every(Job::MessageCleanup, Duration::from_secs(30))?
///     .messages_max(5_000)?
///     .subscription_retention(Duration::from_secs(90 * 86_400))?;
/// let options = OpenOptions::default().maintenance_settings(settings);
/// let headwater = Headwater::open_with("sqlite::memory:", options).await?;
/// # headwater.close().await }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaintenanceSettings(pub(super) Plan);

impl Default for MaintenanceSettings {
    fn default() -> Self {
        MaintenanceSettings::preset(MaintenancePreset::default())
    }
}

impl From<MaintenancePreset> for MaintenanceSettings {
    fn from(preset: MaintenancePreset) -> Self {
        MaintenanceSettings::preset(preset)
    }
}

/// The shortest interval of a job.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

impl MaintenanceSettings {
    /// The values of a preset.
    pub fn preset(preset: MaintenancePreset) -> Self {
        MaintenanceSettings(Plan::of(preset))
    }

    /// How often a job runs. Dead detection runs more often where a heartbeat timeout needs it.
    pub fn every(mut self, job: Job, interval: Duration) -> Result<Self> {
        let longest = job.interval_max();
        if !(INTERVAL_MIN..=longest).contains(&interval) {
            let rule = format!("{} must be from 100ms to {}", written(interval), written(longest));
            return Err(Error::invalid(&format!("interval of {}", job.as_str()), rule));
        }
        *self.0.interval_mut(job) = interval;
        Ok(self)
    }

    /// How many messages one step of cleanup, tracking or backfill changes at most, in one transaction.
    pub fn messages_max(mut self, messages: u32) -> Result<Self> {
        if messages == 0 || messages > MAINTENANCE_MESSAGES_MAX {
            return Err(Error::invalid(
                "messages_max",
                format!("must be from 1 to {MAINTENANCE_MESSAGES_MAX}"),
            ));
        }
        self.0.messages_max = messages;
        Ok(self)
    }

    /// How long cancelled and dead subscriptions are kept before they are deleted; 30 days by default. Dead ones are
    /// deleted only if they have done everything stored, those of queues never.
    pub fn subscription_retention(mut self, retention: Duration) -> Result<Self> {
        check_retention("subscription_retention", retention)?;
        self.0.subscription_retention = retention;
        Ok(self)
    }

    /// How long inbox entries are kept; 30 days by default. A message that is delivered again later than this is processed again,
    /// so it is longer than any redelivery. On PostgreSQL only the owner of the schema may keep them for less than 30 days.
    pub fn inbox_retention(mut self, retention: Duration) -> Result<Self> {
        check_retention("inbox_retention", retention)?;
        self.0.entries.inbox = retention;
        Ok(self)
    }

    /// How long published entries of the outbox are kept; 7 days by default. On PostgreSQL only the owner of the schema may keep
    /// them for less.
    pub fn outbox_retention(mut self, retention: Duration) -> Result<Self> {
        check_retention("outbox_retention", retention)?;
        self.0.entries.outbox = retention;
        Ok(self)
    }

    /// How long processes that ended are kept with their logs; 90 days by default, `None` for ever.
    ///
    /// ```
    /// use std::time::Duration;
    /// use headwater::maintenance::MaintenanceSettings;
    /// let year = MaintenanceSettings::default().process_retention(Duration::from_secs(365 * 86_400))?;
    /// let ever = MaintenanceSettings::default().process_retention(None)?;
    /// # let _ = (year, ever); Ok::<(), headwater::Error>(())
    /// ```
    pub fn process_retention(mut self, retention: impl Into<Option<Duration>>) -> Result<Self> {
        let retention: Option<Duration> = retention.into();
        if retention.is_some_and(|retention| retention > RETENTION_MAX) {
            return Err(Error::invalid("process_retention", "longer than 100 years; use None for ever"));
        }
        self.0.process_retention = retention;
        Ok(self)
    }

    /// How much of the database's capacity backfills may use.
    #[must_use]
    pub fn backfill_pace(mut self, pace: BackfillPace) -> Self {
        self.0.pace = pace;
        self
    }
}

fn check_retention(field: &str, retention: Duration) -> Result<()> {
    if retention > RETENTION_MAX {
        return Err(Error::invalid(field, "longer than 100 years"));
    }
    Ok(())
}

/// How often jobs run and how much they do at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) heads: Duration,
    pub(super) tracking: Duration,
    /// At most; shorter where a topic has a short heartbeat timeout.
    pub(super) dead_detection: Duration,
    pub(super) message_cleanup: Duration,
    pub(super) partitions: Duration,
    pub(super) subscription_cleanup: Duration,
    pub(super) entry_cleanup: Duration,
    /// While no backfill is open.
    pub(super) backfill: Duration,
    pub(super) survey: Duration,
    /// Messages of one step.
    pub(super) messages_max: u32,
    /// How long to pause after a step, as a fraction of the step's time.
    pub(super) rest: f64,
    /// When a run ends although it has more to do.
    pub(super) run_max: Duration,
    pub(super) pace: BackfillPace,
    /// How long cancelled and dead subscriptions are kept.
    pub(super) subscription_retention: Duration,
    /// How long entries of inbox and outbox are kept.
    pub(super) entries: EntryRetention,
    /// How long processes that ended are kept; `None` for ever.
    pub(super) process_retention: Option<Duration>,
}

impl Plan {
    pub(super) fn of(preset: MaintenancePreset) -> Self {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        let standard = Plan {
            heads: second,
            tracking: second,
            dead_detection: minute,
            message_cleanup: minute * 5,
            partitions: minute,
            subscription_cleanup: minute * 60 * 24,
            entry_cleanup: minute * 5,
            backfill: second * 5,
            survey: second * 15,
            messages_max: MAINTENANCE_MESSAGES_MAX,
            rest: 1.0,
            run_max: minute * 10,
            pace: BackfillPace::Standard,
            subscription_retention: SUBSCRIPTION_RETENTION,
            entries: EntryRetention { inbox: INBOX_RETENTION, outbox: OUTBOX_RETENTION },
            process_retention: Some(PROCESS_RETENTION),
        };
        match preset {
            MaintenancePreset::Standard => standard,
            MaintenancePreset::LowThroughput => Plan {
                heads: second * 5,
                tracking: second * 5,
                message_cleanup: minute * 15,
                entry_cleanup: minute * 15,
                partitions: minute * 5,
                backfill: second * 10,
                survey: minute,
                messages_max: MAINTENANCE_MESSAGES_MAX / 10,
                rest: 2.0,
                pace: BackfillPace::Conservative,
                ..standard
            },
            MaintenancePreset::HighThroughput => Plan {
                message_cleanup: minute,
                entry_cleanup: minute,
                partitions: minute / 2,
                rest: 0.1,
                pace: BackfillPace::Aggressive,
                ..standard
            },
            MaintenancePreset::Critical => Plan {
                dead_detection: second * 10,
                message_cleanup: minute,
                entry_cleanup: minute,
                partitions: minute / 2,
                backfill: second,
                messages_max: MAINTENANCE_MESSAGES_MAX / 2,
                rest: 0.5,
                ..standard
            },
        }
    }

    fn interval_mut(&mut self, job: Job) -> &mut Duration {
        match job {
            Job::Heads => &mut self.heads,
            Job::Tracking => &mut self.tracking,
            Job::DeadDetection => &mut self.dead_detection,
            Job::MessageCleanup => &mut self.message_cleanup,
            Job::Partitions => &mut self.partitions,
            Job::SubscriptionCleanup => &mut self.subscription_cleanup,
            Job::EntryCleanup => &mut self.entry_cleanup,
            Job::Backfill => &mut self.backfill,
            Job::Survey => &mut self.survey,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_set_alone_and_within_its_limits() {
        let standard = MaintenanceSettings::default();
        for job in Job::ALL {
            let second = Duration::from_secs(1);
            let mut expected = standard.0;
            *expected.interval_mut(job) = second;
            assert_eq!(standard.every(job, second).unwrap().0, expected, "{job:?}");
            assert_eq!(expected.interval(job, &[], false), second, "{job:?}");
            for refused in [Duration::ZERO, job.interval_max() + second] {
                let error = standard.every(job, refused).unwrap_err().to_string();
                assert!(error.contains(job.as_str()), "{error}");
            }
            assert!(standard.0.interval(job, &[], false) <= job.interval_max(), "{job:?}");
            assert!(job.interval_max() * 3 <= job.overdue_after(), "the doctor would report it: {job:?}");
        }
        assert_eq!(standard.messages_max(7).unwrap().0, Plan { messages_max: 7, ..standard.0 });
        assert!(standard.messages_max(0).is_err() && standard.messages_max(10_001).is_err());
        let day = Duration::from_secs(86_400);
        let kept = standard.subscription_retention(day).unwrap().0;
        assert_eq!(kept, Plan { subscription_retention: day, ..standard.0 });
        let kept = standard.inbox_retention(day).unwrap().outbox_retention(day * 2).unwrap().0;
        assert_eq!(kept, Plan { entries: EntryRetention { inbox: day, outbox: day * 2 }, ..standard.0 });
        let forever = RETENTION_MAX + day;
        assert!(standard.inbox_retention(forever).is_err() && standard.outbox_retention(forever).is_err());
        for retention in [Some(day), None] {
            let kept = standard.process_retention(retention).unwrap().0;
            assert_eq!(kept, Plan { process_retention: retention, ..standard.0 });
        }
        assert!(standard.process_retention(RETENTION_MAX + day).is_err());
    }
}
