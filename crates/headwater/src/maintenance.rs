//! Maintenance: which jobs there are and how they have been doing.

use std::time::Duration;

use jiff::Timestamp;

pub(crate) mod going;
mod jobs;
mod plan;
mod runner;
mod term;
#[cfg(test)]
pub(crate) mod tests;
mod topics;

pub use runner::{Maintaining, Maintenance, MaintenancePreset};

/// A job of upkeep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Job {
    /// Advances heads, closes gaps, hands out late rows, promotes due messages. Every second.
    Heads,
    /// Looks for dead subscriptions. Every minute; more often where a topic has a heartbeat timeout under two.
    DeadDetection,
    /// Keeps the records of reference counting. Every second.
    Tracking,
    /// Removes messages that retention allows. Every five minutes, in batches, with rests between them.
    MessageCleanup,
    /// Creates partitions ahead, drops those behind. Every minute.
    Partitions,
    /// Removes subscriptions and small things past their time. Every day.
    SubscriptionCleanup,
    /// Runs backfills, at their pace. Looked for every five seconds.
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

    /// The word the stores and the CLI use.
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
    /// Rows it removed, made or changed.
    pub rows: u64,
    /// Rows that had to be left for the next run, as far as that is known; 0 if nothing was.
    pub backlog: u64,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// How a job has been doing, over all workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// The job.
    pub job: Job,
    /// How often it is recorded to have run. Of the frequent jobs not every run is: those that did something every ten
    /// seconds, with all rows since, and those that found nothing to do once a minute.
    pub runs: u64,
    /// How often it failed.
    pub failures: u64,
    /// Rows in all.
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
