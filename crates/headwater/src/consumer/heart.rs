//! What a process says of itself, over and over: that it lives, so that its leases are its own, and which subscriptions it
//! serves, so that they live.
//!
//! Each is one call for everything in the process. The answer to the second says how each subscription is. Ten failures in
//! a row hold everything back until one succeeds: a process that is cut off from the database must not go on with
//! messages that others have by then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::group::Group;
use super::runtime::Runtime;
use super::standing::EndReason;
use crate::error::{Error, ErrorKind, Result, no_panic};
use crate::limits::{DELAY_MAX, HEARTBEAT_FAILURES_MAX, WATCH_EVERY};
use crate::store::{Beat, Pulse};
use crate::subscription::{SubscriptionId, SubscriptionState};

/// How long a heartbeat may take.
pub(crate) const BEAT_MAX: Duration = Duration::from_secs(5);
/// How long a read that a heartbeat brings up may take.
const READ_MAX: Duration = Duration::from_secs(2);
/// How soon after one heartbeat another may be asked for out of turn.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The longest interval: a process that serves nobody waits for somebody.
const INTERVAL_MAX: Duration = Duration::from_secs(300);

/// How others ask for a heartbeat out of turn.
#[derive(Debug, Default)]
pub(crate) struct Look {
    asked: Notify,
    urgent: AtomicBool,
}

impl Look {
    /// Wants to know how subscriptions are, unless a claim says it before.
    pub(crate) fn ask(&self) {
        self.asked.notify_one();
    }

    /// Wants a heartbeat in any case.
    pub(crate) fn ask_urgently(&self) {
        self.urgent.store(true, Ordering::SeqCst);
        self.asked.notify_one();
    }
}

/// How often an owner beats. It is also how often others are looked at, so that a dead one is noticed within
/// `silent_for` and one beat: four, because with two that were 22 s by default.
fn beat_every(silent_for: Duration) -> Duration {
    silent_for / 4
}

/// Sends heartbeats and examines other processes until the runtime is gone or serves no group.
pub(crate) async fn run(runtime: Weak<Runtime>, silent_for: Option<Duration>) {
    let (watching, begun) = (Weak::clone(&runtime), Notify::new());
    tokio::select! {
        () = beat(runtime, silent_for, &begun) => {}
        () = watch(watching, &begun) => {}
    }
}

/// Takes over from processes that have ended, beside the heartbeats: neither waits for the other. It begins right after the first
/// heartbeat, because only a known owner can prove that it lives.
async fn watch(runtime: Weak<Runtime>, begun: &Notify) {
    begun.notified().await;
    loop {
        let Some(alive) = runtime.upgrade().filter(|runtime| !runtime.settler.is_gone()) else { return };
        match in_time(BEAT_MAX, alive.store.take_over(&alive.owner)).await {
            // Whose leases ended by it, the store has said.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Closed => return,
            // Heartbeats meet what lasts, and tell it.
            Err(error) => tracing::debug!(%error, "no proof of life given, trying again"),
        }
        drop(alive);
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// Beats until the runtime is gone or serves no group, on the thread for leases: blocked handlers silence no process. Only its own
/// calls are made here; what it wants to know besides is read on the program's runtime, and nothing waits for that.
async fn beat(runtime: Weak<Runtime>, silent_for: Option<Duration>, begun: &Notify) {
    let mut owner = silent_for.map(OwnerBeat::new);
    let mut groups = GroupBeat::new();
    loop {
        let Some(alive) = runtime.upgrade().filter(|runtime| !runtime.settler.is_gone()) else { return };
        let mut told = Ok(());
        if let Some(owner) = owner.as_mut().filter(|owner| Instant::now() >= owner.due_at) {
            told = owner.beat(&alive).await;
            if owner.in_touch_since.is_some() {
                begun.notify_one();
            }
        }
        if told.is_ok() && groups.is_due(&alive.groups()) {
            told = groups.beat(&alive).await;
        }
        // Handlers of a dropped consumer go on, and so does this.
        let (ends, look) = (alive.heart_may_end(), Arc::clone(&alive.look));
        drop(alive);
        if ends || told == Err(Closed) {
            return;
        }
        let next_at = owner.as_ref().map_or(groups.next_at(), |owner| owner.due_at.min(groups.next_at()));
        tokio::select! {
            () = tokio::time::sleep_until(next_at) => {}
            () = look.asked.notified() => groups.asked(look.urgent.swap(false, Ordering::SeqCst)),
        }
    }
}

/// The store was closed: there is nobody to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Closed;

/// Says that the owner is alive, four times per `silent_for`.
///
/// Others are judged only by whoever was itself in touch with the database all the time: after an outage everybody looks
/// silent, and gets as long to speak up as it may be silent before anyone is taken for dead.
struct OwnerBeat {
    silent_for: Duration,
    due_at: Instant,
    /// Since when every beat came in time.
    in_touch_since: Option<Instant>,
    /// By a clock that no step moves, and by one that also counts while the machine sleeps.
    beaten_at: (Instant, SystemTime),
    reading: Reading,
}

impl OwnerBeat {
    fn new(silent_for: Duration) -> Self {
        OwnerBeat {
            silent_for,
            due_at: Instant::now(),
            in_touch_since: None,
            beaten_at: both_clocks(),
            reading: Reading::default(),
        }
    }

    async fn beat(&mut self, runtime: &Runtime) -> Result<(), Closed> {
        let silent_for = self.silent_for;
        // The longer of both: a clock that steps back hides no gap, and a sleep is one.
        let (at, shown) = self.beaten_at;
        if at.elapsed().max(shown.elapsed().unwrap_or_default()) > silent_for / 2 {
            self.in_touch_since = None;
        }
        let in_touch = self.in_touch_since.is_some_and(|at| at.elapsed() >= silent_for);
        let judged = if in_touch { silent_for } else { DELAY_MAX };
        let pause = match in_time(BEAT_MAX, runtime.store.heartbeat(&runtime.owner, judged)).await {
            // Whose leases ended by it, the store has said.
            Ok(_) => {
                self.beaten_at = both_clocks();
                self.in_touch_since.get_or_insert(self.beaten_at.0);
                self.reading.start(runtime, |runtime| async move { runtime.measure_lag().await });
                beat_every(silent_for)
            }
            Err(error) if error.kind() == ErrorKind::Closed => return Err(Closed),
            Err(error) => {
                tracing::warn!(%error, "the heartbeat failed, trying again");
                retry_after(silent_for)
            }
        };
        self.due_at = Instant::now() + pause;
        Ok(())
    }
}

fn both_clocks() -> (Instant, SystemTime) {
    (Instant::now(), SystemTime::now())
}

/// What takes too long or panics has failed: the next heartbeat must not wait for it, or be the last.
pub(crate) async fn in_time<T>(limit: Duration, asked: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Err(Error::new(ErrorKind::Unavailable, format!("no answer in {limit:?}")));
    tokio::time::timeout(limit, no_panic("keeping leases", asked)).await.unwrap_or_else(late)
}

/// A read that a heartbeat brings up, one at a time, on the program's runtime: its connections live there.
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
                tracing::debug!(%error, "reading what heartbeats bring up failed");
            }
        }));
    }
}

/// How soon a heartbeat that failed is tried again.
fn retry_after(interval: Duration) -> Duration {
    (interval / 10).min(Duration::from_secs(1))
}

/// Says which subscriptions are served, and hears how they are.
struct GroupBeat {
    due_at: Instant,
    beaten_at: Option<Instant>,
    /// Somebody asked out of turn: since when, and whether in any case.
    asked: Option<(Instant, bool)>,
    failures: u32,
    reading: Reading,
}

impl GroupBeat {
    fn new() -> Self {
        GroupBeat {
            due_at: Instant::now(),
            beaten_at: None,
            asked: None,
            failures: 0,
            reading: Reading::default(),
        }
    }

    /// Somebody wants to know how a subscription is, or a new one is served.
    fn asked(&mut self, urgent: bool) {
        let urgent_before = self.asked.is_some_and(|(_, urgent)| urgent);
        self.asked = Some((Instant::now(), urgent || urgent_before));
    }

    /// When to look whether it is due.
    fn next_at(&self) -> Instant {
        let soonest = self.beaten_at.map_or_else(Instant::now, |at| at + LOOK_AGAIN);
        self.asked.map_or(self.due_at, |_| self.due_at.min(soonest))
    }

    /// Whether it is time. Whoever asked may know by now: claims say how subscriptions are, too.
    fn is_due(&mut self, groups: &[Arc<Group>]) -> bool {
        let now = Instant::now();
        if now < self.next_at() {
            return false;
        }
        let Some((since, urgent)) = self.asked.take() else { return true };
        let in_the_dark =
            |group: &Arc<Group>| group.leases.held() > 0 && !group.standing.has_heard_since(since);
        urgent || now >= self.due_at || groups.iter().any(in_the_dark)
    }

    async fn beat(&mut self, runtime: &Runtime) -> Result<(), Closed> {
        let groups = runtime.groups();
        // Whatever is asked from here on is asked again.
        (self.beaten_at, self.asked) = (Some(Instant::now()), None);
        if !groups.is_empty() {
            let answer = in_time(BEAT_MAX, runtime.tell(&groups)).await;
            if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Closed) {
                return Err(Closed);
            }
            if self.hear(answer, &groups) {
                let groups = groups.clone();
                self.reading
                    .start(runtime, move |runtime| async move { learn_settings(&runtime, &groups).await });
            }
        }
        let interval = interval_of(&groups);
        let pause = if self.failures == 0 { interval } else { retry_after(interval * 3) };
        // Never later than said: a third of the interval leaves room for two that fail.
        self.due_at = Instant::now() + pause.mul_f64(0.8 + 0.2 * rand::random::<f64>());
        Ok(())
    }

    /// Acts on the answer: each group hears how its subscription is; failures in a row hold all of them back. False if it was
    /// one.
    fn hear(&mut self, answer: Result<(Vec<Beat>, Vec<Pulse>)>, groups: &[Arc<Group>]) -> bool {
        let (beats, pulses) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                tracing::warn!(%error, failures = self.failures, "telling which groups live failed, trying again");
                if self.failures >= HEARTBEAT_FAILURES_MAX {
                    let news = groups.iter().filter(|group| group.suspend()).count();
                    if news > 0 {
                        tracing::warn!(
                            groups = news,
                            "out of touch with the database: handing out nothing until a heartbeat succeeds"
                        );
                    }
                }
                return false;
            }
        };
        self.failures = 0;
        let pulses: HashMap<SubscriptionId, Pulse> =
            beats.iter().map(|beat| beat.subscription_id).zip(pulses).collect();
        for group in groups {
            group.unsuspend();
            if let Some(pulse) = pulses.get(&group.subscription.subscription_id) {
                hear_pulse(group, pulse);
            }
        }
        true
    }
}

/// What operators have altered of a topic or a group holds from here on: how often to beat, how long leases last, how
/// messages are tried again. One read for all.
async fn learn_settings(runtime: &Runtime, groups: &[Arc<Group>]) -> Result<()> {
    let served: Vec<SubscriptionId> = groups.iter().map(|group| group.subscription.subscription_id).collect();
    let settings: HashMap<_, _> = runtime.store.settings_of(&served).await?.into_iter().collect();
    for group in groups {
        // One that is not among them is gone: that is for a heartbeat to hear.
        if let Some(settings) = settings.get(&group.subscription.subscription_id) {
            group.learn(settings);
        }
    }
    Ok(())
}

fn hear_pulse(group: &Group, pulse: &Pulse) {
    match pulse {
        Pulse::Active => {
            if group.standing.set_dead(false) | group.standing.is_paused() {
                // A claim says whether that is still so: this answer may be older than a pause.
                group.leases.wake();
            }
            group.standing.heard();
        }
        Pulse::Resurrected(missed) => {
            let (topic, name) = (&group.subscription.topic.name, &group.subscription.group);
            let range = missed.range.map(|(first, last)| format!("{first}..={last}"));
            tracing::warn!(
                %topic, group = %name, missed = missed.count, offsets = range,
                "the group was dead and lives again; retention took what it missed"
            );
            group.standing.set_dead(false);
            group.standing.heard();
            group.leases.wake();
        }
        Pulse::Paused => {
            if group.hear(SubscriptionState::Paused) {
                group.leases.wake();
            }
        }
        Pulse::Cancelled => group.end(EndReason::Cancelled),
        Pulse::Gone => group.end(EndReason::Gone),
    }
}

/// A third of the shortest interval its topics ask for.
fn interval_of(groups: &[Arc<Group>]) -> Duration {
    let intervals = groups.iter().map(|group| group.standing.heartbeat_interval());
    intervals.min().unwrap_or(INTERVAL_MAX).min(INTERVAL_MAX) / 3
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;

#[cfg(test)]
mod rules {
    use super::*;
    use crate::consumer::runtime::SILENT_FOR;

    #[test]
    fn a_dead_process_is_noticed_within_twenty_seconds_and_three_lost_beats_are_no_death() {
        let longest = SILENT_FOR + beat_every(SILENT_FOR);
        assert!(longest < Duration::from_secs(20), "{longest:?}");
        assert!(beat_every(SILENT_FOR) * 3 < SILENT_FOR);
        assert!(BEAT_MAX * 2 < SILENT_FOR, "between one beat and the next");
    }
}
