//! The status of a subscription: progress, activity and health.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{SubscriptionId, SubscriptionState};
use crate::message::Offset;
use crate::name::GroupName;
use crate::topic::TopicId;

/// The progress and activity of a subscription.
#[derive(Clone, Debug, PartialEq)]
pub struct SubscriptionStatus {
    /// The store's number for it.
    pub subscription_id: SubscriptionId,
    /// Its topic.
    pub topic_id: TopicId,
    /// The group.
    pub group: GroupName,
    /// Its state.
    pub state: SubscriptionState,
    /// Since when it is in that state.
    pub state_since: Timestamp,
    /// When a process of the group last sent a heartbeat; `None` if none ever did. A resume and
    /// a resurrection count as heartbeats.
    pub heartbeat_at: Option<Timestamp>,
    /// How long ago that was, by the database's clock.
    pub heartbeat_age: Option<Duration>,
    /// After how long without a heartbeat it is dead.
    pub heartbeat_timeout: Duration,
    /// The cursor: the first offset never handed out; of an ordered subscription, its slowest lane's.
    pub next: Offset,
    /// Everything at or below it is done.
    pub floor: Offset,
    /// Offsets up to the head that are not done; of an ordered subscription, those above its floor.
    pub lag: u64,
    /// When the oldest message that is not done was published: how far behind in time it is. `None` without lag.
    pub oldest_pending: Option<Timestamp>,
    /// Leased ranges that have not expired.
    pub leased: u64,
    /// Ranges that wait: for a retry time, behind a blocked key, or to be claimed again after their lease expired.
    pub waiting: u64,
    /// Offsets in leases that have not expired.
    pub in_flight: u64,
    /// Offsets that failed and wait for their retry time.
    pub retrying: u64,
    /// Lanes of an ordered subscription that claim nothing new, because too many messages are parked behind a key that
    /// failed. The other keys of such a lane wait too, until that message is done or becomes a dead letter.
    pub lanes_full: u32,
    /// Dead letters.
    pub dead_letters: u64,
    /// Leases that expired and were handed to another owner: `stuck_messages_reassigned`.
    pub reassigned: u64,
    /// Messages that retention removed before the subscription had done them.
    pub missed: MissedMessages,
    /// What its processes last reported, summed up.
    pub activity: Activity,
    /// How many processes sent a heartbeat within the heartbeat timeout.
    pub processes: u32,
    /// How often a process registered within [`crate::limits::FLAPPING_WINDOW`] without the floor having moved since.
    pub restarts: u32,
}

/// Offsets that were removed before a subscription had done them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissedMessages {
    /// How many messages.
    pub count: u64,
    /// The first and last of them; `None` without any.
    pub range: Option<(Offset, Offset)>,
}

/// The activity of a process of a group since it started. Of several: the sums, the mean weighted by their rates, and
/// the worst percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    /// Messages handled.
    pub processed: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Messages that no member accepted.
    pub filtered: u64,
    /// Messages handled per second, recently.
    pub rate: f64,
    /// The mean handling time, recently.
    pub handling_mean: Duration,
    /// The 95th percentile of the handling time, recently.
    pub handling_p95: Duration,
}

/// A health issue of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HealthIssue {
    /// It is dead: no process sent a heartbeat for longer than its timeout.
    Dead,
    /// Four fifths of its timeout have passed without a heartbeat.
    NearTimeout,
    /// Its processes restart repeatedly and it makes no progress.
    Flapping,
    /// Its oldest pending message is over an hour old.
    Stuck,
    /// Retention removed messages it had not done.
    Missed,
    /// A lane is full of messages parked behind a key that failed: its other keys wait too.
    LaneFull,
}

impl HealthIssue {
    /// The name that the CLI uses.
    pub fn as_str(self) -> &'static str {
        match self {
            HealthIssue::Dead => "dead",
            HealthIssue::NearTimeout => "near timeout",
            HealthIssue::Flapping => "flapping",
            HealthIssue::Stuck => "stuck",
            HealthIssue::Missed => "missed messages",
            HealthIssue::LaneFull => "lane full",
        }
    }
}

/// How old a message that is not done may be before it counts as stuck.
pub const STUCK_AFTER: Duration = Duration::from_secs(3_600);

impl SubscriptionStatus {
    /// The database's time when this was read, from the heartbeat and its age.
    pub(crate) fn database_time(&self) -> Option<Timestamp> {
        let age = SignedDuration::try_from(self.heartbeat_age?).ok()?;
        self.heartbeat_at?.checked_add(age).ok()
    }

    /// Its health issues; empty if it is healthy. `now` is the database's time.
    pub fn health_issues(&self, now: Timestamp) -> Vec<HealthIssue> {
        let old = |at: Timestamp, limit: Duration| now.duration_since(at).unsigned_abs() > limit && at < now;
        let active = self.state == SubscriptionState::Active;
        let checks = [
            (HealthIssue::Dead, self.state == SubscriptionState::Dead),
            (HealthIssue::NearTimeout, active && self.is_near_timeout()),
            (HealthIssue::Flapping, active && self.is_flapping()),
            (HealthIssue::Stuck, active && self.oldest_pending.is_some_and(|at| old(at, STUCK_AFTER))),
            (HealthIssue::Missed, self.missed.count > 0),
            (HealthIssue::LaneFull, active && self.lanes_full > 0),
        ];
        checks.into_iter().filter_map(|(health_issue, is_so)| is_so.then_some(health_issue)).collect()
    }

    /// Whether four fifths of its timeout have passed without a heartbeat.
    pub fn is_near_timeout(&self) -> bool {
        self.heartbeat_age.is_some_and(|age| age * 5 >= self.heartbeat_timeout * 4)
    }

    /// Whether it registers repeatedly and makes no progress. The heartbeat timeout never detects that: each restart
    /// sends a heartbeat.
    pub fn is_flapping(&self) -> bool {
        self.lag > 0 && self.restarts >= crate::limits::FLAPPING_RESTARTS + self.processes
    }
}
