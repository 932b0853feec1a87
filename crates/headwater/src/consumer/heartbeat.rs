//! The heartbeat of a process: it shows that the process lives, so that it keeps its leases, and which subscriptions it
//! serves, so that they stay active. One call for everything in the process, and the answer has the state of each
//! subscription.
//!
//! Ten failures in a row hold everything back until one succeeds: a process that is disconnected from the database must
//! not continue with messages that other processes hold by then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::group::Group;
use super::runtime::Runtime;
use super::serve_state::EndReason;
use crate::error::{Error, ErrorKind, Result, no_panic};
use crate::limits::{DELAY_MAX, HEARTBEAT_FAILURES_MAX, WATCH_EVERY};
use crate::store::Signal;
use crate::subscription::{SubscriptionId, SubscriptionState};

/// How long a heartbeat may take.
pub(crate) const HEARTBEAT_MAX: Duration = Duration::from_secs(5);
/// How long a read that follows a heartbeat may take.
const READ_MAX: Duration = Duration::from_secs(2);
/// How soon after one heartbeat another may be requested out of turn.
pub(super) const REQUEST_AGAIN: Duration = Duration::from_secs(1);
/// The longest interval, for a process that serves no group.
const INTERVAL_MAX: Duration = Duration::from_secs(300);

/// Requests a heartbeat out of turn.
#[derive(Debug, Default)]
pub(crate) struct HeartbeatRequest {
    asked: Notify,
    urgent: AtomicBool,
}

impl HeartbeatRequest {
    /// Requests the states of subscriptions, unless a claim returns them before.
    pub(crate) fn ask(&self) {
        self.asked.notify_one();
    }

    /// Requests a heartbeat in any case.
    pub(crate) fn now(&self) {
        self.urgent.store(true, Ordering::SeqCst);
        self.asked.notify_one();
    }
}

/// Tells consumers that a process has tried to prove that it lives: by its first heartbeat and the call of `take_over` that
/// follows. The feed of a group claims nothing before that. Of a process that is killed right after its first claim, the
/// leases would otherwise end only when its heartbeats are missed. However the heartbeats end, also before their task ran,
/// this is dropped, and nothing waits any more.
#[derive(Clone, Debug)]
pub(super) struct Introduced(Arc<watch::Sender<bool>>);

impl Introduced {
    /// For one task of heartbeats, with what consumers wait for. Each of its calls ends within [`HEARTBEAT_MAX`], and a departure before
    /// them within the time-out of its statement.
    pub(super) fn new() -> (Self, watch::Receiver<bool>) {
        let (tried, waits) = watch::channel(false);
        (Introduced(Arc::new(tried)), waits)
    }

    /// Also after a failed attempt: the claims that follow get a lasting error too.
    fn end(&self) {
        self.0.send_if_modified(|tried| !std::mem::replace(tried, true));
    }
}

impl Drop for Introduced {
    fn drop(&mut self) {
        self.end();
    }
}

/// How often an owner that is judged by its silence sends a heartbeat. It is also how often it checks others, so that a
/// dead owner is detected within `silent_for` and one heartbeat. A quarter: with a half that would be 22 s by default.
fn every(silent_for: Duration) -> Duration {
    silent_for / 4
}

/// Sends heartbeats and checks other processes until the runtime is dropped or serves no group. It begins when no departure
/// is under way: that would remove the owner's row and its proof again.
pub(super) async fn run(
    runtime: Weak<Runtime>,
    silent_for: Option<Duration>,
    introduced: Introduced,
    departing: Arc<tokio::sync::Mutex<()>>,
) {
    drop(departing.lock().await);
    let (watching, begun) = (Weak::clone(&runtime), Notify::new());
    tokio::select! {
        () = send(runtime, silent_for, &begun, &introduced) => {}
        () = take_over(watching, &begun, &introduced) => {}
    }
}

/// Takes over from processes that have ended, beside the heartbeats: neither waits for the other. It starts right after
/// the first heartbeat, because only a known owner can prove that it lives.
async fn take_over(runtime: Weak<Runtime>, begun: &Notify, introduced: &Introduced) {
    begun.notified().await;
    loop {
        let Some(alive) = runtime.upgrade().filter(|runtime| !runtime.settler.is_gone()) else { return };
        match in_time(HEARTBEAT_MAX, alive.store.take_over(&alive.owner)).await {
            // The store logs whose leases ended by it.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Closed => return,
            // Heartbeats get a lasting error too, and report it.
            Err(error) => tracing::debug!(%error, "proof of life not renewed, retrying"),
        }
        introduced.end();
        drop(alive);
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// Sends heartbeats until the runtime is dropped or serves no group, on the thread for leases: blocked handlers silence
/// no process. Only heartbeats are sent from here; reads that follow them run on the program's runtime, and nothing
/// waits for those.
async fn send(runtime: Weak<Runtime>, silent_for: Option<Duration>, begun: &Notify, introduced: &Introduced) {
    let mut heartbeats = Heartbeats::new(silent_for);
    loop {
        let Some(alive) = runtime.upgrade().filter(|runtime| !runtime.settler.is_gone()) else { return };
        let mut sent = Ok(());
        if heartbeats.is_due(&alive.groups()) {
            sent = heartbeats.send(&alive).await;
            if heartbeats.in_touch_since.is_some() && silent_for.is_some() {
                begun.notify_one();
            } else {
                introduced.end();
            }
        }
        // Handlers of a dropped consumer continue, and so do heartbeats.
        let (ends, request) = (alive.heartbeats_may_end(), Arc::clone(&alive.request));
        drop(alive);
        if ends || sent == Err(Closed) {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep_until(heartbeats.next_at()) => {}
            () = request.asked.notified() => heartbeats.asked(request.urgent.swap(false, Ordering::SeqCst)),
        }
    }
}

/// The store was closed: no heartbeat follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Closed;

/// When the next heartbeat is due, and the results of the last ones.
///
/// Only an owner that was itself in contact with the database all the time judges others: after an outage all of them
/// appear silent. They get as long to send a heartbeat as they may be silent before any is declared dead.
struct Heartbeats {
    /// How long the owner may be silent before its leases end; with `None` they last until their deadlines.
    silent_for: Option<Duration>,
    due_at: Instant,
    sent_at: Option<Instant>,
    /// A heartbeat was requested out of turn: since when, and whether in any case.
    asked: Option<(Instant, bool)>,
    /// Since when every heartbeat succeeded in time.
    in_touch_since: Option<Instant>,
    /// The time of the last answer, by a clock without steps, and by one that also counts while the machine is
    /// suspended.
    answered_at: (Instant, SystemTime),
    failures: u32,
    lag: Reading,
    lag_due_at: Instant,
    settings: Reading,
    settings_due_at: Instant,
}

impl Heartbeats {
    fn new(silent_for: Option<Duration>) -> Self {
        Heartbeats {
            silent_for,
            due_at: Instant::now(),
            sent_at: None,
            asked: None,
            in_touch_since: None,
            answered_at: both_clocks(),
            failures: 0,
            lag: Reading::default(),
            lag_due_at: Instant::now(),
            settings: Reading::default(),
            settings_due_at: Instant::now(),
        }
    }

    /// A heartbeat is requested: for the state of a subscription, or for a new group.
    fn asked(&mut self, urgent: bool) {
        let urgent_before = self.asked.is_some_and(|(_, urgent)| urgent);
        self.asked = Some((Instant::now(), urgent || urgent_before));
    }

    /// The earliest time it may be due.
    fn next_at(&self) -> Instant {
        let soonest = self.sent_at.map_or_else(Instant::now, |at| at + REQUEST_AGAIN);
        self.asked.map_or(self.due_at, |_| self.due_at.min(soonest))
    }

    /// Whether it is due. A request may be answered by now: claims return the states of subscriptions too.
    fn is_due(&mut self, groups: &[Arc<Group>]) -> bool {
        let now = Instant::now();
        if now < self.next_at() {
            return false;
        }
        let Some((since, urgent)) = self.asked.take() else { return true };
        let uninformed =
            |group: &Arc<Group>| group.leases.held() > 0 && !group.serve_state.has_heard_since(since);
        urgent || now >= self.due_at || groups.iter().any(uninformed)
    }

    async fn send(&mut self, runtime: &Runtime) -> Result<(), Closed> {
        let groups = runtime.groups();
        // Requests from here on need another heartbeat.
        (self.sent_at, self.asked) = (Some(Instant::now()), None);
        let judging = self.judging();
        if judging.is_some() || !runtime.served(&groups).is_empty() {
            let answer = in_time(HEARTBEAT_MAX, runtime.heartbeat(&groups, judging)).await;
            if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Closed) {
                return Err(Closed);
            }
            if self.apply(answer, &groups) {
                self.read(runtime, &groups);
            }
        } else {
            // There is nothing to retry.
            self.failures = 0;
        }
        let interval = interval_of(&groups);
        let pause = self.silent_for.map_or(interval, |silent_for| interval.min(every(silent_for)));
        let pause = if self.failures == 0 { pause } else { retry_after(pause * 3) };
        // Never later than promised: a third of the interval allows for two failures.
        self.due_at = Instant::now() + pause.mul_f64(0.8 + 0.2 * rand::random::<f64>());
        Ok(())
    }

    /// The silence after which other owners are declared dead; `None` if this owner is not judged by silence.
    fn judging(&mut self) -> Option<Duration> {
        let silent_for = self.silent_for?;
        // The longer of both: a clock that steps back hides no gap, and suspended time counts as one.
        let (at, shown) = self.answered_at;
        if at.elapsed().max(shown.elapsed().unwrap_or_default()) > silent_for / 2 {
            self.in_touch_since = None;
        }
        let in_touch = self.in_touch_since.is_some_and(|at| at.elapsed() >= silent_for);
        Some(if in_touch { silent_for } else { DELAY_MAX })
    }

    /// Acts on the answer: each group gets the state of its subscription; failures in a row hold all groups back. False
    /// if it was a failure.
    fn apply(&mut self, answer: Result<Vec<(SubscriptionId, Signal)>>, groups: &[Arc<Group>]) -> bool {
        let signals: HashMap<SubscriptionId, Signal> = match answer {
            Ok(signals) => signals.into_iter().collect(),
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                tracing::warn!(%error, failures = self.failures, "heartbeat failed, retrying");
                if self.failures >= HEARTBEAT_FAILURES_MAX {
                    let suspended = groups.iter().filter(|group| group.suspend()).count();
                    if suspended > 0 {
                        tracing::warn!(groups = suspended, "delivery suspended until a heartbeat succeeds");
                    }
                }
                return false;
            }
        };
        self.failures = 0;
        self.answered_at = both_clocks();
        self.in_touch_since.get_or_insert(self.answered_at.0);
        for group in groups {
            group.unsuspend();
            if let Some(signal) = signals.get(&group.subscription.subscription_id) {
                hear_signal(group, signal);
            }
        }
        true
    }

    /// Starts reads of what may have changed: the lag of groups, and, less often, settings that operators altered.
    fn read(&mut self, runtime: &Runtime, groups: &[Arc<Group>]) {
        let now = Instant::now();
        if let Some(silent_for) = self.silent_for.filter(|_| now >= self.lag_due_at) {
            // Not after each heartbeat: topics with short intervals have many.
            self.lag_due_at = now + every(silent_for).mul_f64(0.8);
            self.lag.start(runtime, |runtime| async move { runtime.measure_lag().await });
        }
        if now >= self.settings_due_at {
            self.settings_due_at = now + interval_of(groups).mul_f64(0.8);
            let groups = groups.to_vec();
            self.settings
                .start(runtime, move |runtime| async move { learn_settings(&runtime, &groups).await });
        }
    }
}

fn both_clocks() -> (Instant, SystemTime) {
    (Instant::now(), SystemTime::now())
}

/// A call that takes too long or panics has failed: the next heartbeat must not wait for it or be prevented by it.
pub(crate) async fn in_time<T>(limit: Duration, asked: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Err(Error::new(ErrorKind::Unavailable, format!("no answer within {limit:?}")));
    tokio::time::timeout(limit, no_panic("keeping leases", asked)).await.unwrap_or_else(late)
}

/// A read that follows a heartbeat, one at a time, on the program's runtime: its connections belong to that runtime.
#[derive(Debug, Default)]
struct Reading(Option<JoinHandle<()>>);

impl Reading {
    fn start<F: Future<Output = Result<()>> + Send>(
        &mut self,
        runtime: &Runtime,
        read: impl FnOnce(Arc<Runtime>) -> F + Send + 'static,
    ) {
        if self.0.as_ref().is_some_and(|reading| !reading.is_finished()) {
            return;
        }
        let this = runtime.downgrade();
        self.0 = Some(runtime.home.spawn(async move {
            let Some(runtime) = this.upgrade() else { return };
            if let Err(error) = in_time(READ_MAX, read(runtime)).await {
                tracing::debug!(%error, "read after heartbeat failed");
            }
        }));
    }
}

/// How soon a failed heartbeat is retried.
fn retry_after(interval: Duration) -> Duration {
    (interval / 10).min(Duration::from_secs(1))
}

/// Applies settings of topics and groups that operators altered: heartbeat interval, lease time, retry policy. One read
/// for all.
async fn learn_settings(runtime: &Runtime, groups: &[Arc<Group>]) -> Result<()> {
    let served: Vec<SubscriptionId> = groups.iter().map(|group| group.subscription.subscription_id).collect();
    let settings: HashMap<_, _> = runtime.store.settings_of(&served).await?.into_iter().collect();
    for group in groups {
        // A subscription that is missing was removed: a heartbeat reports that.
        if let Some(settings) = settings.get(&group.subscription.subscription_id) {
            group.learn(settings);
        }
    }
    Ok(())
}

fn hear_signal(group: &Group, signal: &Signal) {
    match signal {
        Signal::Active => {
            if group.serve_state.set_dead(false) | group.serve_state.is_paused() {
                // A claim returns whether it is still paused: this answer may be older than a pause.
                group.leases.wake();
            }
            group.serve_state.heard();
        }
        Signal::Resurrected(missed) => {
            let (topic, name) = (&group.subscription.topic.name, &group.subscription.group);
            let range = missed.range.map(|(first, last)| format!("{first}..={last}"));
            tracing::warn!(
                %topic, group = %name, missed = missed.count, offsets = range,
                "dead subscription resurrected"
            );
            group.serve_state.set_dead(false);
            group.serve_state.heard();
            group.leases.wake();
        }
        // A claim returns that it is dead and requests the next heartbeat.
        Signal::Dead => group.serve_state.heard(),
        Signal::Paused => {
            if group.note_state(SubscriptionState::Paused, Instant::now()) {
                group.leases.wake();
            }
        }
        Signal::Cancelled => group.end(EndReason::Cancelled),
        Signal::Gone => group.end(EndReason::Gone),
    }
}

/// A third of the shortest heartbeat interval of its topics.
fn interval_of(groups: &[Arc<Group>]) -> Duration {
    let intervals = groups.iter().map(|group| group.serve_state.heartbeat_interval());
    intervals.min().unwrap_or(INTERVAL_MAX).min(INTERVAL_MAX) / 3
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;

#[cfg(test)]
mod rules {
    use super::*;
    use crate::consumer::runtime::SILENT_FOR;

    #[test]
    fn a_dead_process_is_detected_within_twenty_seconds_and_three_lost_heartbeats_are_no_death() {
        let longest = SILENT_FOR + every(SILENT_FOR);
        assert!(longest < Duration::from_secs(20), "{longest:?}");
        assert!(every(SILENT_FOR) * 3 < SILENT_FOR);
        assert!(HEARTBEAT_MAX * 2 < SILENT_FOR, "between one heartbeat and the next");
    }
}
