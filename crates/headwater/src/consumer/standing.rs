//! Whether a group may be served in this process, and if not, why.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Why a consumer ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndReason {
    /// Its subscription was cancelled.
    Cancelled,
    /// Its subscription is not there any more.
    Gone,
    /// What claims for it in this process panicked again and again, which is a bug: the log has it. Its subscription is as it was.
    Panicked,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EndReason::Cancelled => "the subscription was cancelled; subscribing again makes a new one",
            EndReason::Gone => "the subscription is not there any more; subscribing again makes a new one",
            EndReason::Panicked => "claiming for it panicked repeatedly, see the log; run the consumer again",
        })
    }
}

/// What holds a group back.
#[derive(Debug)]
pub(crate) struct Standing {
    /// The subscription is paused.
    paused: AtomicBool,
    /// The subscription is dead, and a heartbeat is to bring it back.
    dead: AtomicBool,
    /// This process has lost touch with the database.
    suspended: AtomicBool,
    /// Its consumer stops.
    stopping: AtomicBool,
    ended: OnceLock<EndReason>,
    /// Told when it has ended.
    pub(super) ending: Notify,
    /// When the store last said how the subscription is.
    heard_at: Mutex<Instant>,
    /// How often its topic wants to hear that it lives.
    heartbeat_interval: Mutex<Duration>,
    /// How many use it: whoever runs it; of a group that is pulled, those that wait for messages or have some.
    users: AtomicUsize,
    /// When the last one left off.
    used_at: Mutex<Instant>,
}

impl Standing {
    pub(crate) fn new(heartbeat_interval: Duration) -> Self {
        Standing {
            paused: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            ended: OnceLock::new(),
            ending: Notify::new(),
            heard_at: Mutex::new(Instant::now()),
            heartbeat_interval: Mutex::new(heartbeat_interval),
            users: AtomicUsize::new(1),
            used_at: Mutex::new(Instant::now()),
        }
    }

    /// Of a group that somebody pulls, and nobody runs.
    pub(super) fn pulled(heartbeat_interval: Duration) -> Self {
        Standing { users: AtomicUsize::new(0), ..Standing::new(heartbeat_interval) }
    }

    /// Somebody uses it from now on. True if it had not been used for so long that nobody said it lives.
    pub(super) fn enter(&self) -> bool {
        let quiet = !self.is_used();
        self.users.fetch_add(1, Ordering::SeqCst);
        quiet
    }

    /// And no more.
    pub(super) fn leave(&self) {
        *self.used_at.lock().expect("no panic while held") = Instant::now();
        self.users.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn users(&self) -> usize {
        self.users.load(Ordering::SeqCst)
    }

    /// Whether somebody does, or did within an interval: a program that pulls does other things in between.
    pub(super) fn is_used(&self) -> bool {
        let lately =
            || self.used_at.lock().expect("no panic while held").elapsed() < self.heartbeat_interval();
        self.users() > 0 || lately()
    }

    /// Whether nothing more is to be handed to members now, not even what a worker has taken and not begun.
    pub(crate) fn is_held_back(&self) -> bool {
        self.is_stopping() || self.is_paused() || self.is_suspended()
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

    /// Whether the subscription itself is over, and all its leases with it.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.ended(), Some(EndReason::Cancelled | EndReason::Gone))
    }

    /// Answers whether that is news; so do the others.
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

    /// The store has said how the subscription is.
    pub(super) fn heard(&self) {
        *self.heard_at.lock().expect("no panic while held") = Instant::now();
    }

    /// Whether the store has said something of the subscription since then.
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
