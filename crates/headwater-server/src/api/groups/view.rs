//! Groups and their outstanding ranges in JSON, under the names that `headwater group` prints.

use headwater::SubscriptionState;
use headwater::jiff::Timestamp;
use headwater::store::{GroupHealth, HealthIssue, Outstanding, Owner};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The state of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum StateName {
    /// Gets messages.
    Active,
    /// Gets no messages and loses none.
    Paused,
    /// Without a heartbeat for too long.
    Dead,
    /// Ended by an operator.
    Cancelled,
}

impl From<SubscriptionState> for StateName {
    fn from(state: SubscriptionState) -> Self {
        match state {
            SubscriptionState::Active => StateName::Active,
            SubscriptionState::Paused => StateName::Paused,
            SubscriptionState::Dead => StateName::Dead,
            SubscriptionState::Cancelled => StateName::Cancelled,
        }
    }
}

impl From<StateName> for SubscriptionState {
    fn from(state: StateName) -> Self {
        match state {
            StateName::Active => SubscriptionState::Active,
            StateName::Paused => SubscriptionState::Paused,
            StateName::Dead => SubscriptionState::Dead,
            StateName::Cancelled => SubscriptionState::Cancelled,
        }
    }
}

/// A group: its state, progress, activity and health.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "topic": "orders", "group": "email", "state": "active", "state_since": "2026-03-02T09:00:00Z", "state_reason": null, "healthy": true,
    "health_issues": [], "heartbeat_at": "2026-03-02T09:10:00Z", "heartbeat_age_ms": 1200, "heartbeat_timeout_ms": 300000, "processes": 1, "restarts": 0,
    "lanes": 0, "next": 1201, "floor": 1188, "lag": 12, "behind_ms": 800, "oldest_pending": "2026-03-02T09:10:00Z", "leased": 1, "waiting": 0,
    "in_flight": 12, "retrying": 0, "lanes_full": 0, "stuck": 0, "dead_letters": 0, "buried_lately": 0, "reassigned": 0, "missed": 0, "missed_first": null,
    "missed_last": null, "processed": 1188, "failed": 2, "filtered": 0, "rate": 35.5, "handling_mean_ms": 4.2, "handling_p95_ms": 11.0
}))]
pub(super) struct GroupView {
    topic: String,
    group: String,
    state: StateName,
    /// Since when it is in that state.
    state_since: Timestamp,
    /// Why it is paused, if a reason was given.
    state_reason: Option<String>,
    /// Whether it has no health issue; null for a group without issues that is not active.
    healthy: Option<bool>,
    /// What is wrong with it; empty if nothing is.
    health_issues: Vec<&'static str>,
    /// When a process of the group last sent a heartbeat; null if none ever did.
    heartbeat_at: Option<Timestamp>,
    /// How long ago that was, by the database's clock.
    heartbeat_age_ms: Option<u64>,
    /// After how long without a heartbeat it is dead.
    heartbeat_timeout_ms: u64,
    /// How many processes serve it.
    processes: u32,
    /// How often a process registered lately without any progress since.
    restarts: u32,
    /// Into how many lanes it is split; 0 if messages are not ordered by key.
    lanes: u16,
    /// The first offset never handed out.
    next: i64,
    /// Everything at or below it is done.
    floor: i64,
    /// Messages that are not done.
    lag: u64,
    /// How long ago the oldest message that is not done was published; null without lag.
    behind_ms: Option<u64>,
    /// When the oldest message that is not done was published.
    oldest_pending: Option<Timestamp>,
    /// Leased ranges.
    leased: u64,
    /// Ranges that wait: for a retry time, behind a blocked key, or to be claimed again.
    waiting: u64,
    /// Messages in leases.
    in_flight: u64,
    /// Messages that failed and wait for their retry time.
    retrying: u64,
    /// Lanes that claim nothing new because too many messages are parked in them.
    lanes_full: u32,
    /// Messages that are not done and older than an hour.
    stuck: u64,
    /// Dead letters.
    dead_letters: u64,
    /// Messages that became dead letters within the last hour.
    buried_lately: u64,
    /// Leases that expired and were handed to another process.
    reassigned: u64,
    /// Messages that retention removed before they were done.
    missed: u64,
    /// The first of them.
    missed_first: Option<i64>,
    /// The last of them.
    missed_last: Option<i64>,
    /// Messages handled.
    processed: u64,
    /// Attempts that failed.
    failed: u64,
    /// Messages that no member accepted.
    filtered: u64,
    /// Messages handled per second, recently.
    rate: f64,
    /// The mean handling time, recently.
    handling_mean_ms: f64,
    /// The 95th percentile of the handling time, recently.
    handling_p95_ms: f64,
}

impl GroupView {
    pub(super) fn new(topic: &str, health: GroupHealth) -> Self {
        let GroupHealth { status: group, health_issues, behind } = health;
        let issues: Vec<&'static str> = health_issues.into_iter().map(HealthIssue::as_str).collect();
        let healthy = match group.state {
            SubscriptionState::Active => Some(issues.is_empty()),
            _ => (!issues.is_empty()).then_some(false),
        };
        let (ms, fraction) =
            (|time: std::time::Duration| millis(time), |time: std::time::Duration| time.as_secs_f64() * 1e3);
        GroupView {
            topic: topic.to_owned(),
            group: group.group.as_str().to_owned(),
            state: group.state.into(),
            state_since: group.state_since,
            state_reason: group.state_reason,
            healthy,
            health_issues: issues,
            heartbeat_at: group.heartbeat_at,
            heartbeat_age_ms: group.heartbeat_age.map(ms),
            heartbeat_timeout_ms: ms(group.heartbeat_timeout),
            processes: group.processes,
            restarts: group.restarts,
            lanes: group.lanes,
            next: group.next.0,
            floor: group.floor.0,
            lag: group.lag,
            behind_ms: behind.map(ms),
            oldest_pending: group.oldest_pending,
            leased: group.leased,
            waiting: group.waiting,
            in_flight: group.in_flight,
            retrying: group.retrying,
            lanes_full: group.lanes_full,
            stuck: group.stuck,
            dead_letters: group.dead_letters,
            buried_lately: group.buried_lately,
            reassigned: group.reassigned,
            missed: group.missed.count,
            missed_first: group.missed.range.map(|(first, _)| first.0),
            missed_last: group.missed.range.map(|(_, last)| last.0),
            processed: group.activity.processed,
            failed: group.activity.failed,
            filtered: group.activity.filtered,
            rate: group.activity.rate,
            handling_mean_ms: fraction(group.activity.handling_mean),
            handling_p95_ms: fraction(group.activity.handling_p95),
        }
    }
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A range of offsets that a group was handed and has not done.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "first": 1189, "last": 1200, "lane": null, "state": "leased", "token": 77, "owner": "mailer-1", "attempts": 1, "due_at": "2026-03-02T09:15:00Z",
    "key": null, "suspect": false, "last_error": null
}))]
pub(super) struct OutstandingView {
    first: i64,
    last: i64,
    /// The lane of an ordered group.
    lane: Option<u16>,
    /// `leased`, `waiting` or `parked`.
    state: &'static str,
    /// The token of its lease, while it is leased.
    token: Option<i64>,
    /// The process that holds it, or let it expire.
    owner: Option<String>,
    /// How often it was handed out.
    attempts: u32,
    /// Leased: the deadline. Waiting: when it may be handed out; null for at once.
    due_at: Option<Timestamp>,
    /// The key it waits for, or that waits for it.
    key: Option<String>,
    /// Its owner crashed: it is handed out alone, in ever smaller ranges.
    suspect: bool,
    /// The error of the last attempt.
    last_error: Option<String>,
}

impl From<Outstanding> for OutstandingView {
    fn from(range: Outstanding) -> Self {
        OutstandingView {
            first: range.range.first.0,
            last: range.range.last.0,
            lane: range.lane,
            state: range.state.as_str(),
            token: range.token.map(|token| token.0),
            owner: range.owner.as_ref().map(Owner::as_str).map(str::to_owned),
            attempts: range.attempts,
            due_at: range.due_at,
            key: range.key,
            suspect: range.suspect,
            last_error: range.last_error,
        }
    }
}
