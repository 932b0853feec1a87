//! When each job is due and how much it does at a time: pure rules, from a preset.

use std::time::Duration;

use super::Job;
use super::settings::Plan;
use crate::topic::{Storage, TopicSettings, TopicStatus, Tracking};

/// The length of a term, by the database's clock.
pub(super) const TERM: Duration = Duration::from_secs(10);
/// How often the term is confirmed: two confirmations may fail.
pub(super) const RENEW: Duration = Duration::from_secs(3);
/// How often candidates check whether the term is free. Together with the term it is under the 15 s in which a killed
/// process is replaced.
pub(super) const CANDIDATE: Duration = Duration::from_millis(4_500);
/// How long the last read of the topics is used: settings change rarely, and a new topic can wait.
pub(super) const TOPICS_KEPT: Duration = Duration::from_secs(5);
/// After an election each job runs soon, whatever its interval: the process before may not have run it.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// How often runs that did nothing are recorded.
pub(super) const QUIET_RECORDED: Duration = Duration::from_secs(60);
/// How often runs that did something are recorded.
pub(super) const BUSY_RECORDED: Duration = Duration::from_secs(10);
/// The shortest interval of dead detection.
const DETECTION_MIN: Duration = Duration::from_millis(200);
/// The longest wait after failures.
const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// The longest pause between two batches.
const REST_MAX: Duration = Duration::from_secs(2);
/// How soon a job with work left runs again.
const SOON: Duration = Duration::from_secs(1);

impl Plan {
    /// How long after a successful run the next is due; `left` means that there was more to do.
    pub(super) fn interval(&self, job: Job, topics: &[TopicStatus], left: bool) -> Duration {
        match job {
            Job::Heads => self.heads,
            Job::Tracking => self.tracking,
            Job::DeadDetection => self.detection(topics),
            Job::MessageCleanup => self.message_cleanup,
            Job::Partitions => self.partitions,
            Job::SubscriptionCleanup => self.subscription_cleanup,
            Job::EntryCleanup => self.entry_cleanup,
            Job::Backfill if left => SOON.min(self.backfill),
            Job::Backfill => self.backfill,
            Job::Survey => self.survey,
        }
    }

    /// A fifth of the shortest timeout at most, so that a dead group is detected soon after its timeout.
    fn detection(&self, topics: &[TopicStatus]) -> Duration {
        let timeouts = topics.iter().map(|status| status.heartbeat_timeout);
        let shortest = timeouts.min().unwrap_or(Duration::MAX);
        self.dead_detection.min((shortest / 5).max(DETECTION_MIN))
    }

    /// When a job first runs after an election; `chance` is from 0 to 1.
    pub(super) fn first(&self, job: Job, topics: &[TopicStatus], chance: f64) -> Duration {
        self.interval(job, topics, true).min(FIRST_WITHIN).mul_f64(chance.clamp(0.0, 1.0))
    }

    /// How long to wait after this many failures in a row: the interval, doubled with each.
    pub(super) fn backoff(&self, job: Job, failures: u32) -> Duration {
        let first = self.interval(job, &[], true).clamp(SOON, BACKOFF_MAX);
        first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(BACKOFF_MAX)
    }

    /// How long to pause after a step that took this long, so that applications can use the database.
    pub(super) fn rest(&self, took: Duration) -> Duration {
        took.mul_f64(self.rest).min(REST_MAX)
    }
}

/// How long after a run the next is due at the earliest, however short its interval is: a survey of very many groups takes
/// at most a twentieth of the time.
pub(super) fn at_least(job: Job, took: Duration) -> Duration {
    if job == Job::Survey { took * 20 } else { Duration::ZERO }
}

/// Slightly less than a duration, so that processes do not synchronize, and never more, so that bounds hold. `chance`
/// is from 0 to 1.
pub(super) fn jittered(duration: Duration, chance: f64) -> Duration {
    duration.mul_f64(0.9 + 0.1 * chance.clamp(0.0, 1.0))
}

/// Whether a topic has completion records to maintain, or to remove after a change of `tracking`.
pub(super) fn is_tracked(status: &TopicStatus) -> bool {
    status.topic.settings.tracking == Tracking::ReferenceCounting || status.tracking_change.is_some()
}

/// Whether retention may have something to remove: messages are stored, and not all of them are kept forever.
pub(super) fn is_cleanable(status: &TopicStatus) -> bool {
    let TopicSettings { message_retention, max_retention, .. } = &status.topic.settings;
    status.first <= status.head && (message_retention.is_some() || max_retention.is_some())
}

/// Whether a topic has partitions to create and drop.
pub(super) fn is_partitioned(status: &TopicStatus) -> bool {
    status.topic.settings.storage != Storage::Shared
}

/// Whether cleanup is slower than publishing: it ended with work left, and removed less than was published meanwhile.
pub(super) fn is_behind(removed: u64, published: u64, backlog: u64) -> bool {
    backlog > 0 && removed < published
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::MAINTENANCE_MESSAGES_MAX;
    use crate::maintenance::MaintenancePreset;
    use crate::maintenance::tests::topic;

    const PRESETS: [MaintenancePreset; 4] = [
        MaintenancePreset::Standard,
        MaintenancePreset::LowThroughput,
        MaintenancePreset::HighThroughput,
        MaintenancePreset::Critical,
    ];

    #[test]
    fn the_standard_is_what_is_written_and_presets_are_what_they_are_called() {
        let seconds = |plan: Plan| Job::ALL.map(|job| plan.interval(job, &[], false).as_secs());
        let plan = Plan::of(MaintenancePreset::Standard);
        assert_eq!(seconds(plan), [1, 60, 1, 5, 300, 60, 86_400, 300, 15]);
        assert_eq!(plan.messages_max, 10_000);
        let [_, low, high, critical] = PRESETS.map(Plan::of);
        assert!(low.message_cleanup > plan.message_cleanup && low.messages_max < plan.messages_max);
        assert!(high.message_cleanup == Duration::from_secs(60) && high.rest < plan.rest);
        assert!(critical.dead_detection < plan.dead_detection);
        assert!(critical.message_cleanup < plan.message_cleanup);
        for plan in PRESETS.map(Plan::of) {
            assert!(plan.messages_max <= MAINTENANCE_MESSAGES_MAX && plan.messages_max > 0);
        }
    }

    #[test]
    fn a_short_timeout_is_watched_closely_and_a_tiny_one_not_madly() {
        let plan = Plan::of(MaintenancePreset::Standard);
        let with = |timeout_ms: u64| {
            let mut status = topic(1);
            status.heartbeat_timeout = Duration::from_millis(timeout_ms);
            plan.interval(Job::DeadDetection, &[topic(2), status], false)
        };
        assert_eq!(with(300_000), Duration::from_secs(60));
        assert_eq!(with(150_000), Duration::from_secs(30));
        assert_eq!(with(2_000), Duration::from_millis(400));
        assert_eq!(with(200), Duration::from_millis(200));
    }

    #[test]
    fn a_killed_worker_is_replaced_within_fifteen_seconds() {
        assert!(TERM + CANDIDATE < Duration::from_secs(15));
        assert!(RENEW * 3 < TERM, "two confirmations may be lost");
    }

    #[test]
    fn only_what_is_left_while_more_comes_is_falling_behind() {
        assert!(is_behind(100, 200, 1));
        assert!(!is_behind(100, 200, 0), "everything removable is removed: retention keeps the rest");
        assert!(!is_behind(200, 100, 50), "it catches up");
    }

    #[test]
    fn nothing_stored_and_everything_for_ever_are_not_asked_about() {
        assert!(is_cleanable(&topic(1)));
        let mut empty = topic(1);
        empty.first = crate::Offset(empty.head.0 + 1);
        assert!(!is_cleanable(&empty));
        let mut forever = topic(1);
        forever.topic.settings.message_retention = None;
        forever.topic.settings.max_retention = Some(Duration::from_secs(1));
        assert!(is_cleanable(&forever), "max_retention still applies");
        forever.topic.settings.max_retention = None;
        assert!(!is_cleanable(&forever));
    }

    proptest! {
        #[test]
        fn backing_off_rises_and_is_bounded(failures in 1u32..100) {
            for plan in PRESETS.map(Plan::of) {
                for job in Job::ALL {
                    let (now, then) = (plan.backoff(job, failures), plan.backoff(job, failures + 1));
                    prop_assert!(now <= then && then <= BACKOFF_MAX && now >= SOON);
                }
            }
        }

        #[test]
        fn jitter_never_lengthens(ms in 0u64..100_000, chance in 0.0f64..=1.0) {
            let duration = Duration::from_millis(ms);
            let shorter = jittered(duration, chance);
            prop_assert!(shorter <= duration && shorter >= duration.mul_f64(0.899));
        }
    }
}
