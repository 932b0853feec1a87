//! Maintenance: the jobs and their history.

use std::time::Duration;

use jiff::Timestamp;

mod jobs;
mod plan;
mod runner;
pub(crate) mod stop;
mod term;
#[cfg(test)]
pub(crate) mod tests;
mod topics;

pub use runner::{Maintaining, Maintenance, MaintenancePreset};

/// A maintenance job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Job {
    /// Advances heads, closes gaps, hands out late messages, moves scheduled messages that are due into the log. Every
    /// second.
    Heads,
    /// Detects dead subscriptions. Every minute; more often where a topic has a heartbeat timeout under two minutes.
    DeadDetection,
    /// Maintains the completion records of reference counting. Every second.
    Tracking,
    /// Removes messages that retention allows to be removed. Every five minutes, in batches, with pauses between them.
    MessageCleanup,
    /// Creates partitions ahead, and drops old ones. Every minute.
    Partitions,
    /// Removes subscriptions, inbox entries and dedup keys after their retention. Every day.
    SubscriptionCleanup,
    /// Runs backfills at their pace. Checked for every five seconds.
    Backfill,
}

impl Job {
    /// Every job, in the order in which one round runs them.
    pub const ALL: [Job; 7] = [
        Job::Heads,
        Job::DeadDetection,
        Job::Tracking,
        Job::Backfill,
        Job::MessageCleanup,
        Job::Partitions,
        Job::SubscriptionCleanup,
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
            Job::Backfill => "backfill",
        }
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
