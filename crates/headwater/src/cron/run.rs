//! The task of a job: sleeps until the next tick, fires it in the store, and handles missed ticks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, oneshot};

use super::Missed;
use super::schedule::Schedule;
use crate::clock::Clock;
use crate::error::Result;
use crate::gate::Inside;
use crate::limits::TICK_AHEAD_MAX;
use crate::message::NewMessage;
use crate::name::TopicName;
use crate::observe::errors::RecentErrors;
use crate::observe::health::{Health, HealthState, Rates, Times, Totals};
use crate::observe::metrics::TopicMetrics;
use crate::store::Delivery;

/// Longest sleep: a machine's clock may step, and a suspended machine does not count the time.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// A tick older than this counts as missed: twice the longest sleep, so that sleeping causes no missed tick.
const MISSED_AFTER: SignedDuration = SignedDuration::from_secs(120);
/// The pause after a first failure; it doubles up to the longest sleep.
const RETRY_FIRST: Duration = Duration::from_secs(1);

const HEADER_JOB: &str = "headwater-cron-job";
const HEADER_TICK: &str = "headwater-cron-tick";

/// A request of a [`CronJob`](super::CronJob) to its task.
#[derive(Debug)]
pub(super) enum Order {
    /// Read the clock now, and answer how many ticks were published.
    Check(oneshot::Sender<Result<u64>>),
}

/// The task of a job.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) store: Arc<dyn Delivery>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<TopicMetrics>,
    pub(super) schedule: Schedule,
    pub(super) missed: Missed,
    pub(super) job: String,
    pub(super) topic: TopicName,
    pub(super) message: NewMessage,
    /// All ticks up to here were published, by any process, or dropped.
    pub(super) checked: Timestamp,
    pub(super) state: Arc<State>,
}

/// The state that the task shares with its handle.
#[derive(Debug)]
pub(super) struct State {
    pub(super) job: String,
    topic: TopicName,
    published: AtomicU64,
    failing: AtomicBool,
    stopped: AtomicBool,
    errors: RecentErrors,
}

/// The time by the job's clock. The store has no call for the database's time, so it is this machine's unless a test
/// injects one. A machine whose clock is wrong fires early or late, but never twice: the store records each tick.
pub(super) fn now(clock: &Clock) -> Timestamp {
    clock.injected().unwrap_or_else(Timestamp::now)
}

/// The message of one tick.
pub(super) fn message_of(message: &NewMessage, job: &str, tick: Timestamp) -> NewMessage {
    message.clone().header(HEADER_JOB, job).header(HEADER_TICK, tick.to_string())
}

/// Runs until the job's handle is dropped, or the handle of its store is closed.
pub(super) async fn run(mut runner: Runner, mut orders: mpsc::Receiver<Order>, inside: Inside) {
    let by_hand = matches!(runner.clock, Clock::Manual(_));
    let mut sleep = Duration::ZERO;
    let mut failures = 0;
    loop {
        let answer = tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(Order::Check(answer)) => Some(answer),
                None => break,
            },
            () = inside.closing() => break,
            () = tokio::time::sleep(sleep), if !by_hand => None,
        };
        let checked = runner.check().await;
        match &checked {
            Ok(_) => {
                failures = 0;
                sleep = runner.schedule.wait(now(&runner.clock), SLEEP_MAX);
            }
            Err(error) => {
                sleep = RETRY_FIRST.saturating_mul(1 << failures.min(6)).min(SLEEP_MAX);
                failures += 1;
                tracing::warn!(job = runner.job, %error, again_in = ?sleep, "cron tick publish failed");
            }
        }
        if let Some(answer) = answer {
            // A caller that stopped waiting has dropped its receiver.
            let _ = answer.send(checked);
        }
    }
    runner.state.stopped.store(true, Ordering::Relaxed);
}

impl Runner {
    /// Publishes the ticks that are due, and returns how many this process published.
    async fn check(&mut self) -> Result<u64> {
        let now = now(&self.clock);
        let mut published = 0;
        for tick in due(&self.schedule, self.missed, self.checked, now) {
            published += u64::from(self.fire(tick).await?);
            self.checked = tick;
        }
        // Ticks that a clock set back a little shows again stay done. A time far ahead of the clock is reset: it must
        // not block the job.
        self.checked = if self.checked > now + TICK_AHEAD_MAX { now } else { self.checked.max(now) };
        self.state.failing.store(false, Ordering::Relaxed);
        Ok(published)
    }

    /// Fires one tick; true if this process published it.
    async fn fire(&self, tick: Timestamp) -> Result<bool> {
        let message = message_of(&self.message, &self.job, tick);
        let start = Instant::now();
        let fired = self.store.cron_fire(&self.job, tick, &self.topic, &message).await;
        self.metrics.publish_seconds.record(start.elapsed());
        match fired {
            Ok(fired) => {
                let ours = fired.is_some();
                tracing::debug!(job = self.job, %tick, ours, "cron tick");
                self.metrics.succeeded(usize::from(ours));
                self.state.published.fetch_add(u64::from(ours), Ordering::Relaxed);
                Ok(ours)
            }
            Err(error) => {
                self.metrics.failed(1, &error);
                self.state.errors.record_error(&error, format!("tick {tick} of cron job {}", self.job));
                self.state.failing.store(true, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}

/// The ticks to publish now, oldest first, when all up to `checked` are done.
fn due(schedule: &Schedule, missed: Missed, checked: Timestamp, now: Timestamp) -> VecDeque<Timestamp> {
    let prompt = now.checked_sub(MISSED_AFTER).unwrap_or(Timestamp::MIN);
    if checked >= prompt {
        return schedule.between(checked, now).collect();
    }
    match missed {
        Missed::Skip => schedule.between(prompt, now).collect(),
        Missed::FireOnce => schedule.last(1, checked, now),
        Missed::FireAll { at_most } => {
            schedule.last(usize::try_from(at_most).unwrap_or(usize::MAX), checked, now)
        }
    }
}

impl State {
    pub(super) fn new(job: String, topic: TopicName) -> Self {
        State {
            job,
            topic,
            published: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            errors: RecentErrors::default(),
        }
    }

    pub(super) fn health(&self) -> Health {
        let state = if self.stopped.load(Ordering::Relaxed) {
            HealthState::Stopped
        } else if self.failing.load(Ordering::Relaxed) {
            HealthState::Failing
        } else {
            HealthState::Running
        };
        Health {
            component: format!("cron job {}", self.job),
            topic: self.topic.as_str().to_owned(),
            group: None,
            state,
            reason: None,
            rates: Rates::default(),
            times: Times::default(),
            in_flight: 0,
            lag: None,
            totals: Totals { published: self.published.load(Ordering::Relaxed), ..Totals::default() },
            last_errors: self.errors.newest_first(),
        }
    }
}
