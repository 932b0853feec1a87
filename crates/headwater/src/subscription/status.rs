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
    /// Into how many lanes it is split: 0 when messages are not ordered by key.
    pub lanes: u16,
    /// Its state.
    pub state: SubscriptionState,
    /// Since when it is in that state.
    pub state_since: Timestamp,
    /// Why it is paused, if a reason was given: by an operator, or by the group itself after too many burials.
    pub state_reason: Option<String>,
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
    /// Offsets that are not done and were published longer ago than [`STUCK_AFTER`].
    pub stuck: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Messages that became dead letters within the last [`LATELY`], and still are.
    pub buried_lately: u64,
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
    /// No process sent a heartbeat for longer than its timeout, and it is not declared dead: maintenance does not run.
    Silent,
    /// Four fifths of its timeout have passed without a heartbeat.
    NearTimeout,
    /// It has messages to handle, and no process serves it.
    Unserved,
    /// No process ever served it, for longer than its timeout. It is never declared dead, so retention waits for it
    /// forever.
    NeverServed,
    /// Its processes restart repeatedly and it makes no progress.
    Flapping,
    /// Its oldest pending message is over an hour old.
    Stuck,
    /// Retention removed messages it had not done.
    Missed,
    /// A lane is full of messages parked behind a key that failed: its other keys wait too.
    LaneFull,
    /// It buries many of its messages: at least [`BURIED_MANY`] within the last [`LATELY`], and one in a hundred.
    Burying,
    /// It is paused for a reason, which is in [`SubscriptionStatus::state_reason`]: it waits to be resumed.
    Paused,
}

impl HealthIssue {
    /// The name that the CLI uses.
    pub fn as_str(self) -> &'static str {
        match self {
            HealthIssue::Dead => "dead",
            HealthIssue::Silent => "silent",
            HealthIssue::NearTimeout => "near timeout",
            HealthIssue::Unserved => "unserved",
            HealthIssue::NeverServed => "never served",
            HealthIssue::Flapping => "flapping",
            HealthIssue::Stuck => "stuck",
            HealthIssue::Missed => "missed messages",
            HealthIssue::LaneFull => "lane full",
            HealthIssue::Burying => "burying",
            HealthIssue::Paused => "paused for a reason",
        }
    }
}

/// How old a message that is not done may be before it counts as stuck.
pub const STUCK_AFTER: Duration = Duration::from_secs(3_600);
/// The time over which recent burials are counted.
pub const LATELY: Duration = Duration::from_secs(3_600);
/// How many burials within [`LATELY`] are many, if they are also at least one in a hundred messages.
pub const BURIED_MANY: u64 = 10;

impl SubscriptionStatus {
    /// The database's time when this was read, from the heartbeat and its age.
    pub(crate) fn database_time(&self) -> Option<Timestamp> {
        let age = SignedDuration::try_from(self.heartbeat_age?).ok()?;
        self.heartbeat_at?.checked_add(age).ok()
    }

    /// Its health issues; empty if it is healthy. `now` is the database's time.
    pub fn health_issues(&self, now: Timestamp) -> Vec<HealthIssue> {
        let active = self.state == SubscriptionState::Active;
        let checks = [
            (HealthIssue::Dead, self.state == SubscriptionState::Dead),
            (HealthIssue::Silent, active && self.is_silent()),
            (HealthIssue::NearTimeout, active && self.is_near_timeout()),
            (HealthIssue::Unserved, active && self.is_unserved()),
            (HealthIssue::NeverServed, active && self.is_never_served(now)),
            (HealthIssue::Flapping, active && self.is_flapping()),
            (
                HealthIssue::Stuck,
                active && self.oldest_pending.is_some_and(|at| is_older(at, STUCK_AFTER, now)),
            ),
            (HealthIssue::Missed, self.missed.count > 0),
            (HealthIssue::LaneFull, active && self.lanes_full > 0),
            (HealthIssue::Burying, self.state != SubscriptionState::Cancelled && self.is_burying()),
            (HealthIssue::Paused, self.state == SubscriptionState::Paused && self.state_reason.is_some()),
        ];
        checks.into_iter().filter_map(|(health_issue, is_so)| is_so.then_some(health_issue)).collect()
    }

    /// Whether its timeout has passed without a heartbeat. Detection declares such a group dead, where it runs.
    pub fn is_silent(&self) -> bool {
        self.heartbeat_age.is_some_and(|age| age > self.heartbeat_timeout)
    }

    /// Whether four fifths of its timeout, but not all of it, have passed without a heartbeat.
    pub fn is_near_timeout(&self) -> bool {
        !self.is_silent() && self.heartbeat_age.is_some_and(|age| age * 5 >= self.heartbeat_timeout * 4)
    }

    /// Whether it has messages to handle and no process serves it.
    pub fn is_unserved(&self) -> bool {
        self.lag > 0 && self.processes == 0
    }

    /// Whether it never had a heartbeat, for longer than its timeout. `now` is the database's time.
    pub fn is_never_served(&self, now: Timestamp) -> bool {
        self.heartbeat_at.is_none() && is_older(self.state_since, self.heartbeat_timeout, now)
    }

    /// Whether many of its messages recently became dead letters, by number and by share of what it handles.
    pub fn is_burying(&self) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "compared with a rate, which is an estimate")]
        let buried = self.buried_lately as f64;
        self.buried_lately >= BURIED_MANY && buried * 100.0 >= self.activity.rate * LATELY.as_secs_f64()
    }

    /// Whether it registers repeatedly and makes no progress. The heartbeat timeout never detects that: each restart
    /// sends a heartbeat.
    pub fn is_flapping(&self) -> bool {
        self.lag > 0 && self.restarts >= crate::limits::FLAPPING_RESTARTS + self.processes
    }
}

/// Whether a time is further back than a limit.
pub(crate) fn is_older(at: Timestamp, limit: Duration, now: Timestamp) -> bool {
    at < now && now.duration_since(at).unsigned_abs() > limit
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An active group of an unordered topic that is served, without messages.
    pub(crate) fn served(group: &str, now: Timestamp) -> SubscriptionStatus {
        SubscriptionStatus {
            subscription_id: SubscriptionId(1),
            topic_id: TopicId(1),
            group: GroupName::new(group).expect("a valid name"),
            lanes: 0,
            state: SubscriptionState::Active,
            state_since: now,
            state_reason: None,
            heartbeat_at: Some(now),
            heartbeat_age: Some(Duration::ZERO),
            heartbeat_timeout: Duration::from_secs(300),
            next: Offset(1),
            floor: Offset(0),
            lag: 0,
            oldest_pending: None,
            leased: 0,
            waiting: 0,
            in_flight: 0,
            retrying: 0,
            lanes_full: 0,
            stuck: 0,
            dead_letters: 0,
            buried_lately: 0,
            reassigned: 0,
            missed: MissedMessages::default(),
            activity: Activity::default(),
            processes: 1,
            restarts: 0,
        }
    }

    #[test]
    fn a_silent_group_is_no_longer_near_its_timeout() {
        let now = Timestamp::UNIX_EPOCH;
        let with = |seconds: u64| {
            let heartbeat_age = Some(Duration::from_secs(seconds));
            SubscriptionStatus { heartbeat_age, ..served("email", now) }.health_issues(now)
        };
        assert_eq!(with(239), []);
        assert_eq!(with(240), [HealthIssue::NearTimeout]);
        assert_eq!(with(300), [HealthIssue::NearTimeout]);
        assert_eq!(with(301), [HealthIssue::Silent]);
    }

    #[test]
    fn burials_count_by_number_and_by_share() {
        let now = Timestamp::UNIX_EPOCH;
        let with = |buried_lately: u64, rate: f64| {
            let activity = Activity { rate, ..Activity::default() };
            SubscriptionStatus { buried_lately, activity, ..served("email", now) }.is_burying()
        };
        assert!(!with(9, 0.0) && with(10, 0.0));
        // 3,600 messages an hour, of which one in a hundred is 36.
        assert!(!with(35, 1.0) && with(36, 1.0));
    }
}
