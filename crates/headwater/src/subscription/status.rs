//! How a subscription is: how far, how lively, and whether that is healthy.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{SubscriptionId, SubscriptionState};
use crate::message::Offset;
use crate::name::GroupName;
use crate::topic::TopicId;

/// How far a subscription is, and how it is doing.
#[derive(Clone, Debug, PartialEq)]
pub struct SubscriptionStatus {
    /// The store's number for it.
    pub subscription_id: SubscriptionId,
    /// Its topic.
    pub topic_id: TopicId,
    /// The group.
    pub group: GroupName,
    /// Where it is in its life.
    pub state: SubscriptionState,
    /// Since when it is in that state.
    pub state_since: Timestamp,
    /// When a process of the group last said that it is alive; `None` if none ever did. To a fraction of the topic's
    /// `heartbeat_interval`, because not every heartbeat is written.
    pub heartbeat_at: Option<Timestamp>,
    /// How long ago that was, by the database's clock.
    pub heartbeat_age: Option<Duration>,
    /// For how long it may be silent.
    pub heartbeat_timeout: Duration,
    /// The first offset never handed out; of an ordered subscription, its slowest lane's.
    pub next: Offset,
    /// Everything at or below it is done.
    pub floor: Offset,
    /// Offsets up to the head that are not done; of an ordered subscription, those above its floor.
    pub lag: u64,
    /// When the oldest message that is not done was published, and so how far behind in time it is. `None` without lag.
    pub oldest_pending: Option<Timestamp>,
    /// Ranges handed out and not settled, before their deadline.
    pub leased: u64,
    /// Ranges that wait: for a retry time, behind a blocked key, or to be claimed again, as what ran out.
    pub waiting: u64,
    /// Offsets handed out and not settled, before their deadline.
    pub in_flight: u64,
    /// Offsets that failed and wait for their time to be tried again.
    pub retrying: u64,
    /// Lanes of an ordered subscription that take nothing new: so many messages wait behind a key that failed. The other keys
    /// of such a lane wait too, until that message is done or buried.
    pub lanes_full: u32,
    /// Messages buried.
    pub dead_letters: u64,
    /// Hand-outs that expired and were given to another: `stuck_messages_reassigned`.
    pub reassigned: u64,
    /// What retention took before the subscription had done it.
    pub missed: MissedMessages,
    /// What its processes last told of themselves, added up.
    pub activity: Activity,
    /// How many processes told something within the heartbeat timeout.
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

/// What a process of a group has done since it started. Of several: the sums, the mean weighted by their rates, and the
/// worst percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    /// Messages handled.
    pub processed: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Messages no member wanted.
    pub filtered: u64,
    /// Messages handled a second, lately.
    pub rate: f64,
    /// How long handling takes on average, lately.
    pub handling_mean: Duration,
    /// How long handling takes at most for nineteen in twenty, lately.
    pub handling_p95: Duration,
}

/// Why a subscription is not healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ailment {
    /// It is dead: no process said that it is alive for longer than its timeout.
    Dead,
    /// It has been silent for four fifths of its timeout.
    NearTimeout,
    /// Its processes restart over and over and it does not get on.
    Flapping,
    /// Its oldest pending message is over an hour old.
    Stuck,
    /// Retention took messages it had not done.
    Missed,
    /// A lane is full of messages behind a key that failed: its other keys wait too.
    LaneFull,
}

impl Ailment {
    /// The word the CLI uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Ailment::Dead => "dead",
            Ailment::NearTimeout => "near timeout",
            Ailment::Flapping => "flapping",
            Ailment::Stuck => "stuck",
            Ailment::Missed => "missed messages",
            Ailment::LaneFull => "lane full",
        }
    }
}

/// For how long a message may be unfinished before it counts as stuck.
pub const STUCK_AFTER: Duration = Duration::from_secs(3_600);

impl SubscriptionStatus {
    /// The database's time when this was read, as the heartbeat tells it.
    pub(crate) fn database_time(&self) -> Option<Timestamp> {
        let age = SignedDuration::try_from(self.heartbeat_age?).ok()?;
        self.heartbeat_at?.checked_add(age).ok()
    }

    /// Why it is not healthy; empty if it is. `now` is the database's time.
    pub fn ailments(&self, now: Timestamp) -> Vec<Ailment> {
        let old = |at: Timestamp, limit: Duration| now.duration_since(at).unsigned_abs() > limit && at < now;
        let active = self.state == SubscriptionState::Active;
        let checks = [
            (Ailment::Dead, self.state == SubscriptionState::Dead),
            (Ailment::NearTimeout, active && self.is_near_timeout()),
            (Ailment::Flapping, active && self.is_flapping()),
            (Ailment::Stuck, active && self.oldest_pending.is_some_and(|at| old(at, STUCK_AFTER))),
            (Ailment::Missed, self.missed.count > 0),
            (Ailment::LaneFull, active && self.lanes_full > 0),
        ];
        checks.into_iter().filter_map(|(ailment, is_so)| is_so.then_some(ailment)).collect()
    }

    /// Whether it has been silent for four fifths of its timeout.
    pub fn is_near_timeout(&self) -> bool {
        self.heartbeat_age.is_some_and(|age| age * 5 >= self.heartbeat_timeout * 4)
    }

    /// Whether it registers over and over and does not get on. A death timeout never sees that: each restart beats.
    pub fn is_flapping(&self) -> bool {
        self.lag > 0 && self.restarts >= crate::limits::FLAPPING_RESTARTS + self.processes
    }
}
