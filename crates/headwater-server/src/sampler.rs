//! Figures of all topics and groups over time, for the dashboard and the statistics.
//!
//! One task reads everything through the operator API: once a second while a page is watched and the store answers quickly, less often
//! otherwise. Pages show the last reading, so that a page costs the same however large the store is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use axum::http::StatusCode;
use headwater::Headwater;
use headwater::jiff::Timestamp;
use headwater::store::{Finding, SubscriptionId, TopicId};
use tokio::sync::{Mutex, Notify};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::problem::Problem;

mod series;
mod snapshot;

pub(crate) use series::{Fineness, Readings, Series};
pub(crate) use snapshot::{GroupFigures, Snapshot, TopicFigures, Totals};

/// The pause between two readings: at least this while a page is watched, and while none is.
const WATCHED_MIN: Duration = Duration::from_secs(1);
const WATCHED_MAX: Duration = Duration::from_secs(10);
const UNWATCHED_MIN: Duration = Duration::from_secs(5);
const UNWATCHED_MAX: Duration = Duration::from_secs(30);
/// Rates are measured over this long at least.
const RATE_OVER_MIN: Duration = Duration::from_millis(1_500);
/// A reading that takes no longer is repeated for a page, so that it shows what was just done.
const CHEAP: Duration = Duration::from_millis(15);
/// A reading this old is as good as a new one.
const FRESH: Duration = Duration::from_millis(250);
/// How often findings are read: they change slowly, and cost queries of their own.
const FINDINGS_EVERY: Duration = Duration::from_secs(5);
/// The longest that one reading may take.
const READ_WITHIN: Duration = Duration::from_secs(20);
/// Most topics and groups whose past is kept; the others only have their present.
const TOPICS_KEPT_MAX: usize = 5_000;
const GROUPS_KEPT_MAX: usize = 20_000;

/// Reads the status of all topics and groups at intervals and keeps the last readings.
pub(crate) struct Sampler {
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    headwater: Headwater,
    state: RwLock<State>,
    /// Held while a reading is under way: of many pages one reads.
    reading: Mutex<()>,
    watchers: AtomicUsize,
    /// Something was changed since the last reading.
    outdated: AtomicBool,
    wake: Notify,
    started: Instant,
}

#[derive(Default)]
struct State {
    latest: Option<Latest>,
    topics: HashMap<TopicId, Series>,
    groups: HashMap<SubscriptionId, GroupSeries>,
    totals: Option<TotalSeries>,
    /// Why the last reading failed.
    problem: Option<String>,
    findings_at: Option<Instant>,
}

struct Latest {
    snapshot: Arc<Snapshot>,
    taken: Instant,
    cost: Duration,
    /// An earlier reading, with which the next one is compared: rates over a moment would jump.
    before: Option<(Arc<Snapshot>, Instant)>,
}

struct GroupSeries {
    lag: Series,
    handled: Series,
}

struct TotalSeries {
    published: Series,
    handled: Series,
    lag: Series,
}

/// The past of a group.
#[derive(Clone, Debug)]
pub(crate) struct GroupPast {
    pub(crate) lag: Readings,
    pub(crate) handled: Readings,
}

/// The past of everything.
#[derive(Clone, Debug)]
pub(crate) struct TotalPast {
    pub(crate) published: Readings,
    pub(crate) handled: Readings,
    pub(crate) lag: Readings,
}

/// Which part of the past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Span {
    #[default]
    Minutes,
    Hour,
}

/// A page is watched as long as this lives.
pub(crate) struct Watching(Arc<Shared>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sampler {
    /// Begins to read. To be called inside of a runtime.
    pub(crate) fn new(headwater: &Headwater) -> Self {
        let shared = Arc::new(Shared {
            headwater: headwater.clone(),
            state: RwLock::default(),
            reading: Mutex::default(),
            watchers: AtomicUsize::new(0),
            outdated: AtomicBool::new(false),
            wake: Notify::new(),
            started: Instant::now(),
        });
        let task = tokio::spawn(run(Arc::clone(&shared))).abort_handle();
        Sampler { shared, task }
    }

    /// Reads once a second from now on, as long as what this returns is kept.
    pub(crate) fn watch(&self) -> Watching {
        self.shared.watchers.fetch_add(1, Ordering::Relaxed);
        self.shared.wake.notify_one();
        Watching(Arc::clone(&self.shared))
    }

    /// Something was changed: the next page must not show what was before, if a reading is cheap.
    pub(crate) fn outdate(&self) {
        self.shared.outdated.store(true, Ordering::Relaxed);
        self.shared.wake.notify_one();
    }

    /// The figures for a page: read now if that is cheap, else the last ones. An error only if there are none.
    pub(crate) async fn snapshot(&self) -> Result<Arc<Snapshot>, Problem> {
        if let Some((snapshot, wants_more)) = self.shared.latest()
            && !wants_more
        {
            return Ok(snapshot);
        }
        let _one = self.shared.reading.lock().await;
        match self.shared.latest() {
            Some((snapshot, false)) => Ok(snapshot),
            Some((snapshot, true)) => Ok(self.shared.read().await.unwrap_or(snapshot)),
            None => self.shared.read().await,
        }
    }

    /// Why the last reading failed, if it did: what pages show is older then.
    pub(crate) fn problem(&self) -> Option<String> {
        self.shared.state().problem.clone()
    }

    /// How many messages were published to a topic per second.
    pub(crate) fn topic_past(&self, topic: TopicId, span: Span) -> Option<Readings> {
        let second = self.shared.second();
        self.shared.state().topics.get(&topic).map(|series| of_span(series, span, second))
    }

    /// How a group was doing.
    pub(crate) fn group_past(&self, group: SubscriptionId, span: Span) -> Option<GroupPast> {
        let second = self.shared.second();
        self.shared.state().groups.get(&group).map(|series| GroupPast {
            lag: of_span(&series.lag, span, second),
            handled: of_span(&series.handled, span, second),
        })
    }

    /// How everything was doing.
    pub(crate) fn total_past(&self, span: Span) -> Option<TotalPast> {
        let second = self.shared.second();
        self.shared.state().totals.as_ref().map(|series| TotalPast {
            published: of_span(&series.published, span, second),
            handled: of_span(&series.handled, span, second),
            lag: of_span(&series.lag, span, second),
        })
    }
}

fn of_span(series: &Series, span: Span, second: u64) -> Readings {
    match span {
        Span::Minutes => series.minutes(second),
        Span::Hour => series.hour(second),
    }
}

/// Reads until the sampler is dropped.
async fn run(shared: Arc<Shared>) {
    loop {
        {
            let _one = shared.reading.lock().await;
            // Why it failed is in the state, and pages show it.
            let _ = shared.read().await;
        }
        let began = Instant::now();
        loop {
            let left = shared.pause().saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            // Woken by a page that begins to be watched: the pause may be shorter now.
            tokio::select! {
                () = sleep(left) => {}
                () = shared.wake.notified() => {}
            }
        }
    }
}

impl Shared {
    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn second(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    fn pause(&self) -> Duration {
        let cost = self.state().latest.as_ref().map_or(Duration::ZERO, |latest| latest.cost);
        pause_after(cost, self.watchers.load(Ordering::Relaxed) > 0)
    }

    /// The last reading, and whether it should and can be replaced at once.
    fn latest(&self) -> Option<(Arc<Snapshot>, bool)> {
        let state = self.state();
        let latest = state.latest.as_ref()?;
        let is_old = latest.taken.elapsed() > FRESH || self.outdated.load(Ordering::Relaxed);
        Some((Arc::clone(&latest.snapshot), is_old && latest.cost <= CHEAP))
    }

    async fn read(&self) -> Result<Arc<Snapshot>, Problem> {
        self.outdated.store(false, Ordering::Relaxed);
        let began = Instant::now();
        let read = match timeout(READ_WITHIN, self.figures()).await {
            Ok(read) => read.map_err(Problem::from),
            Err(_) => Err(took_too_long()),
        };
        match read {
            Ok(snapshot) => Ok(self.keep(snapshot, began)),
            Err(problem) => {
                self.state_mut().problem = Some(problem.detail().to_owned());
                Err(problem)
            }
        }
    }

    async fn figures(&self) -> headwater::Result<Snapshot> {
        let figures = self.headwater.figures().await?;
        let known = self.known_findings();
        let findings = match known {
            Some(findings) => findings,
            None => {
                let findings = self.headwater.attention_of(&figures).await?;
                self.state_mut().findings_at = Some(Instant::now());
                findings
            }
        };
        Ok(Snapshot::from_figures(figures, findings))
    }

    /// The findings of the last reading, unless they are old or something was changed.
    fn known_findings(&self) -> Option<Vec<Finding>> {
        let state = self.state();
        let latest = state.latest.as_ref()?;
        let is_cheap = latest.cost <= CHEAP;
        let is_recent = state.findings_at.is_some_and(|at| at.elapsed() < FINDINGS_EVERY);
        (is_recent && !is_cheap).then(|| latest.snapshot.findings.clone())
    }

    /// Adds the rates since the last reading, and keeps all of it.
    fn keep(&self, mut snapshot: Snapshot, began: Instant) -> Arc<Snapshot> {
        let (second, cost) = (self.second(), began.elapsed());
        let before = self.state().latest.as_ref().map(|latest| latest.baseline(began));
        // Without the lock: pages wait for it, and there may be ten thousand groups.
        if let Some((before, taken)) = &before {
            add_rates(&mut snapshot, before, began.duration_since(*taken).as_secs_f64());
        }
        let mut state = self.state_mut();
        state.remember(&snapshot, second);
        let snapshot = Arc::new(snapshot);
        state.problem = None;
        state.latest = Some(Latest { snapshot: Arc::clone(&snapshot), taken: began, cost, before });
        snapshot
    }
}

impl Latest {
    /// What the next reading is compared with: this one if it is old enough, else the one that this was compared with.
    fn baseline(&self, now: Instant) -> (Arc<Snapshot>, Instant) {
        match &self.before {
            Some(before) if now.duration_since(self.taken) < RATE_OVER_MIN => before.clone(),
            _ => (Arc::clone(&self.snapshot), self.taken),
        }
    }
}

impl State {
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "shown in charts")]
    fn remember(&mut self, snapshot: &Snapshot, second: u64) {
        let topics: HashMap<TopicId, f64> =
            snapshot.topics.iter().map(|one| (one.status.topic.topic_id, one.published_per_s)).collect();
        self.topics.retain(|topic, _| topics.contains_key(topic));
        for (topic, rate) in topics {
            if self.topics.len() < TOPICS_KEPT_MAX || self.topics.contains_key(&topic) {
                let series = self.topics.entry(topic).or_insert_with(|| Series::new(Fineness::Second));
                series.push(second, rate as f32);
            }
        }
        let groups: HashMap<SubscriptionId, &GroupFigures> =
            snapshot.groups.iter().map(|one| (one.status.subscription_id, one)).collect();
        self.groups.retain(|group, _| groups.contains_key(group));
        for (group, figures) in groups {
            if self.groups.len() < GROUPS_KEPT_MAX || self.groups.contains_key(&group) {
                let series = self.groups.entry(group).or_insert_with(GroupSeries::new);
                series.lag.push(second, figures.status.lag as f32);
                series.handled.push(second, figures.handled_per_s as f32);
            }
        }
        let Totals { published_per_s, handled_per_s, lag, .. } = snapshot.totals;
        let totals = self.totals.get_or_insert_with(TotalSeries::new);
        totals.published.push(second, published_per_s as f32);
        totals.handled.push(second, handled_per_s as f32);
        totals.lag.push(second, lag as f32);
    }
}

impl GroupSeries {
    fn new() -> Self {
        let series = || Series::new(Fineness::TwoSeconds);
        GroupSeries { lag: series(), handled: series() }
    }
}

impl TotalSeries {
    fn new() -> Self {
        let series = || Series::new(Fineness::Second);
        TotalSeries { published: series(), handled: series(), lag: series() }
    }
}

/// What was published and done per second between two readings. A seek or a purge moves positions: that is no rate.
#[expect(clippy::cast_precision_loss, reason = "rates are shown with three digits")]
fn add_rates(now: &mut Snapshot, before: &Snapshot, elapsed_s: f64) {
    if elapsed_s <= 0.0 {
        return;
    }
    let heads: HashMap<TopicId, i64> =
        before.topics.iter().map(|one| (one.status.topic.topic_id, one.status.head.0)).collect();
    let mut heads_now = HashMap::new();
    for topic in &mut now.topics {
        let (id, head) = (topic.status.topic.topic_id, topic.status.head.0);
        // One that was not there had nothing.
        let published = (head - heads.get(&id).copied().unwrap_or(0)).max(0);
        topic.published_per_s = published as f64 / elapsed_s;
        heads_now.insert(id, head);
    }
    let done_of = |group: &GroupFigures, heads: &HashMap<TopicId, i64>| {
        let head = heads.get(&group.status.topic_id)?;
        Some(head - i64::try_from(group.status.lag).unwrap_or(i64::MAX))
    };
    let done: HashMap<SubscriptionId, (i64, i64)> = before
        .groups
        .iter()
        .filter_map(|one| Some((one.status.subscription_id, (done_of(one, &heads)?, one.status.next.0))))
        .collect();
    for group in &mut now.groups {
        let rate = done.get(&group.status.subscription_id).and_then(|(was, next)| {
            let is_moved_back = group.status.next.0 < *next;
            let more = done_of(group, &heads_now)? - was;
            (!is_moved_back && more > 0).then(|| more as f64 / elapsed_s)
        });
        group.handled_per_s = rate.unwrap_or(0.0);
    }
    now.sum_up();
}

/// How long to pause after a reading that took this long: it may use an eighth of a core while a page is watched.
fn pause_after(cost: Duration, watched: bool) -> Duration {
    match watched {
        true => (cost * 7).clamp(WATCHED_MIN, WATCHED_MAX),
        false => (cost * 100).clamp(UNWATCHED_MIN, UNWATCHED_MAX),
    }
}

fn took_too_long() -> Problem {
    let detail = format!("figures not read within {READ_WITHIN:?}: the store is overloaded; try again");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
}

/// How long ago something was by the clock of a snapshot.
pub(crate) fn age(now: Timestamp, at: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expensive_readings_are_rarer_and_unwatched_ones_too() {
        let after = |ms: u64, watched| pause_after(Duration::from_millis(ms), watched);
        assert_eq!(after(5, true), WATCHED_MIN);
        assert_eq!(after(500, true), Duration::from_millis(3_500));
        assert_eq!(after(60_000, true), WATCHED_MAX);
        assert_eq!((after(5, false), after(1_000, false)), (UNWATCHED_MIN, UNWATCHED_MAX));
    }

    #[tokio::test]
    async fn a_snapshot_shows_what_was_just_done_and_rates_follow() {
        let headwater = Headwater::in_memory().await.unwrap();
        let sampler = Sampler::new(&headwater);
        headwater.producer("orders").send(&1).await.unwrap();
        headwater.groups("orders").subscribe("email", headwater::Start::Beginning).await.unwrap();
        sampler.outdate();
        let first = sampler.snapshot().await.unwrap();
        assert_eq!(first.group("orders", "email").unwrap().status.lag, 1);
        for n in 0..50 {
            headwater.producer("orders").send(&n).await.unwrap();
        }
        sampler.outdate();
        let second = sampler.snapshot().await.unwrap();
        let orders = second.topic("orders").unwrap();
        assert_eq!(orders.status.head.0, 51);
        assert!(orders.published_per_s > 0.0, "{orders:?}");
        assert_eq!(second.totals.lag, 51);
        let past = sampler.topic_past(orders.status.topic.topic_id, Span::Minutes).unwrap();
        assert_eq!((past.step_s, past.values.len()), (1, 300));
        headwater.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_closed_store_is_a_problem_and_the_last_figures_stay() {
        let headwater = Headwater::in_memory().await.unwrap();
        headwater.producer("orders").send(&1).await.unwrap();
        let sampler = Sampler::new(&headwater);
        assert_eq!(sampler.snapshot().await.unwrap().topics.len(), 1);
        headwater.close().await.unwrap();
        sampler.outdate();
        assert_eq!(sampler.snapshot().await.unwrap().topics.len(), 1);
        assert!(sampler.problem().unwrap().contains("closed"), "{:?}", sampler.problem());
    }
}
