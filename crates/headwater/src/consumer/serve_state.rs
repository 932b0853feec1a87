//! Whether a group may be served in this process, and if not, why.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::own_pause::OwnPause;

/// Why a consumer ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndReason {
    /// Its subscription was cancelled.
    Cancelled,
    /// Its subscription no longer exists.
    Gone,
    /// Claiming for it in this process panicked repeatedly, which is a bug: see the log. Its subscription is unchanged.
    Panicked,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EndReason::Cancelled => "the subscription was cancelled; subscribing again creates a new one",
            EndReason::Gone => "the subscription no longer exists; subscribing again creates a new one",
            EndReason::Panicked => "claiming for it panicked repeatedly, see the log; run the consumer again",
        })
    }
}

/// The conditions that hold a group back.
#[derive(Debug)]
pub(crate) struct ServeState {
    /// The subscription is paused.
    paused: AtomicBool,
    /// The subscription is dead, and a heartbeat will resurrect it.
    dead: AtomicBool,
    /// This process has lost contact with the database.
    suspended: AtomicBool,
    /// Its consumer is stopping.
    stopping: AtomicBool,
    /// The group pauses itself.
    pub(crate) own_pause: OwnPause,
    ended: OnceLock<EndReason>,
    /// Notified when it has ended.
    pub(super) ending: Notify,
    /// When the store last reported the state of the subscription.
    heard_at: Mutex<Instant>,
    /// The heartbeat interval of its topic.
    heartbeat_interval: Mutex<Duration>,
    /// How many users it has: its running consumer; for a pulled group, callers that wait for messages or hold some.
    users: AtomicUsize,
    /// When the last user left, or until when it counts as used.
    used_at: Mutex<Instant>,
}

impl ServeState {
    pub(crate) fn new(heartbeat_interval: Duration) -> Self {
        ServeState {
            paused: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            own_pause: OwnPause::default(),
            ended: OnceLock::new(),
            ending: Notify::new(),
            heard_at: Mutex::new(Instant::now()),
            heartbeat_interval: Mutex::new(heartbeat_interval),
            users: AtomicUsize::new(1),
            used_at: Mutex::new(Instant::now()),
        }
    }

    /// For a group whose batches a program takes, without a running consumer.
    pub(super) fn pulled(heartbeat_interval: Duration) -> Self {
        ServeState { users: AtomicUsize::new(0), ..ServeState::new(heartbeat_interval) }
    }

    /// Adds a user. True if there was none for so long that no heartbeat names the group.
    pub(super) fn enter(&self) -> bool {
        let quiet = !self.is_used();
        self.users.fetch_add(1, Ordering::SeqCst);
        quiet
    }

    /// Removes a user.
    pub(super) fn leave(&self) {
        self.use_until(Instant::now());
        self.users.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts as used up to a time, whatever users it has.
    pub(super) fn use_until(&self, at: Instant) {
        let mut used_at = self.used_at.lock().expect("no panic while held");
        *used_at = at.max(*used_at);
    }

    pub(super) fn users(&self) -> usize {
        self.users.load(Ordering::SeqCst)
    }

    /// Whether it has a user, or had one within an interval: a program that takes batches does other things in between.
    pub(super) fn is_used(&self) -> bool {
        let lately =
            || self.used_at.lock().expect("no panic while held").elapsed() < self.heartbeat_interval();
        self.users() > 0 || lately()
    }

    /// Whether nothing more is handed to members now, not even messages that a worker has taken and not started.
    pub(crate) fn is_held_back(&self) -> bool {
        self.is_stopping() || self.is_paused() || self.is_suspended() || self.own_pause.is_on()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(crate) fn set_stopping(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::SeqCst)
    }

    pub(crate) fn ended(&self) -> Option<EndReason> {
        self.ended.get().copied()
    }

    /// Whether the subscription itself has ended, and all its leases with it.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.ended(), Some(EndReason::Cancelled | EndReason::Gone))
    }

    /// Returns whether that changed; so do the other setters.
    pub(super) fn set_paused(&self, paused: bool) -> bool {
        self.paused.swap(paused, Ordering::SeqCst) != paused
    }

    pub(super) fn set_dead(&self, dead: bool) -> bool {
        self.dead.swap(dead, Ordering::SeqCst) != dead
    }

    pub(super) fn set_suspended(&self, suspended: bool) -> bool {
        self.suspended.swap(suspended, Ordering::SeqCst) != suspended
    }

    pub(super) fn set_ended(&self, reason: EndReason) -> bool {
        self.ended.set(reason).is_ok()
    }

    /// The store has reported the state of the subscription.
    pub(super) fn heard(&self) {
        *self.heard_at.lock().expect("no panic while held") = Instant::now();
    }

    /// Whether the store has reported the state of the subscription since then.
    pub(super) fn has_heard_since(&self, since: Instant) -> bool {
        *self.heard_at.lock().expect("no panic while held") >= since
    }

    pub(super) fn heartbeat_interval(&self) -> Duration {
        *self.heartbeat_interval.lock().expect("no panic while held")
    }

    /// The topic was altered.
    pub(super) fn set_heartbeat_interval(&self, interval: Duration) {
        *self.heartbeat_interval.lock().expect("no panic while held") = interval;
    }
}
