//! Maintenance: the jobs and their history.

use std::time::Duration;

use jiff::Timestamp;

mod jobs;
mod plan;
mod runner;
mod settings;
pub(crate) mod stop;
mod survey;
mod term;
#[cfg(test)]
pub(crate) mod tests;
mod topics;

pub use runner::{Maintaining, Maintenance};
pub use settings::{MaintenancePreset, MaintenanceSettings};

/// A maintenance job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Job {
    /// Advances heads, closes gaps, hands out late messages, moves scheduled messages that are due into the log. Every
    /// second.
    Heads,
    /// Detects dead subscriptions. Every minute; more often where a heartbeat timeout is under five minutes.
    DeadDetection,
    /// Maintains the completion records of reference counting. Every second.
    Tracking,
    /// Removes messages that retention allows to be removed. Every five minutes, in batches, with pauses between them.
    MessageCleanup,
    /// Creates partitions ahead, and drops old ones. Every minute.
    Partitions,
    /// Removes subscriptions, ended processes and dedup keys after their retention. Every day.
    SubscriptionCleanup,
    /// Removes inbox entries and published entries of the outbox after their retention. Every five minutes, in batches, with
    /// pauses between them.
    EntryCleanup,
    /// Runs backfills at their pace. Checked for every five seconds.
    Backfill,
    /// Exports metrics of all groups and topics, and logs topics without subscriptions. Every 15 seconds.
    Survey,
}

impl Job {
    /// Every job, in the order in which one round runs them.
    pub const ALL: [Job; 9] = [
        Job::Heads,
        Job::DeadDetection,
        Job::Tracking,
        Job::Backfill,
        Job::MessageCleanup,
        Job::Partitions,
        Job::SubscriptionCleanup,
        Job::EntryCleanup,
        Job::Survey,
    ];

    /// The name that the stores and the CLI use.
    pub fn as_str(self) -> &'static str {
        match self {
            Job::Heads => "heads",
            Job::DeadDetection => "dead_detection",
            Job::Tracking => "tracking",
            Job::MessageCleanup => "message_cleanup",
            Job::Partitions => "partitions",
            Job::SubscriptionCleanup => "subscription_cleanup",
            Job::EntryCleanup => "entry_cleanup",
            Job::Backfill => "backfill",
            Job::Survey => "survey",
        }
    }

    /// The longest interval that can be set for it.
    fn interval_max(self) -> Duration {
        const MINUTE: Duration = Duration::from_secs(60);
        match self {
            // Detection that pauses for longer than three minutes does not declare groups dead.
            Job::Heads | Job::Tracking | Job::DeadDetection => MINUTE,
            Job::Partitions | Job::Backfill | Job::Survey => MINUTE * 5,
            Job::MessageCleanup | Job::EntryCleanup => MINUTE * 60,
            Job::SubscriptionCleanup => MINUTE * 60 * 24,
        }
    }

    /// After how long without a run it is overdue, whatever its interval is set to.
    pub(crate) fn overdue_after(self) -> Duration {
        (self.interval_max() * 3).max(crate::observe::attention::MAINTENANCE_SILENT)
    }
}

/// One run of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRun {
    /// The job.
    pub job: Job,
    /// How long it took.
    pub duration: Duration,
    /// Rows it removed, added or changed.
    pub rows: u64,
    /// Rows left for the next run, as far as known; 0 if none.
    pub backlog: u64,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// The history of a job, over all processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// The job.
    pub job: Job,
    /// How many runs are recorded. Of the frequent jobs not every run is recorded: runs that did something every ten
    /// seconds, with all rows since, and runs that found nothing to do once a minute.
    pub runs: u64,
    /// How often it failed.
    pub failures: u64,
    /// Rows in total.
    pub rows: u64,
    /// Rows left when it last ran.
    pub backlog: u64,
    /// When it last ran.
    pub last_run_at: Timestamp,
    /// How long that took.
    pub last_duration: Duration,
    /// Why it last failed, until it succeeds again.
    pub last_error: Option<String>,
}
