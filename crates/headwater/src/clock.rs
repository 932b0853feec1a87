//! Time: the database's own, or one that tests move by hand.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;

pub(crate) mod guard;

/// Where monotonic time of this process begins.
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Where "now" comes from for leases, retries, delays and dedup windows.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The database's clock (PostgreSQL), or this machine's (the embedded file). Application clocks may be
    /// wrong by hours; the one place all processes share is the database.
    #[default]
    Database,
    /// A clock that stands still until a test moves it.
    Manual(ManualClock),
}

impl Clock {
    /// The time to bind into a statement: `None` lets the database use its own.
    pub fn injected(&self) -> Option<Timestamp> {
        match self {
            Clock::Database => None,
            Clock::Manual(clock) => Some(clock.now()),
        }
    }

    /// Time that no step of a clock moves, since some moment of this process. It may stand still while the machine is
    /// suspended.
    pub(crate) fn monotonic(&self) -> Duration {
        match self {
            Clock::Database => BEGUN.elapsed(),
            Clock::Manual(clock) => Duration::from_millis(clock.0.passed_ms.load(Ordering::SeqCst)),
        }
    }
}

/// A clock for tests: it stands still until moved. Clones share the same hands.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Hands>);

#[derive(Debug)]
struct Hands {
    now_ms: AtomicI64,
    /// How much time passed: steps do not count.
    passed_ms: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at the given time, to the millisecond.
    pub fn at(now: Timestamp) -> Self {
        ManualClock(Arc::new(Hands {
            now_ms: AtomicI64::new(now.as_millisecond()),
            passed_ms: AtomicU64::new(0),
        }))
    }

    /// The time it shows.
    pub fn now(&self) -> Timestamp {
        let millisecond = self.0.now_ms.load(Ordering::SeqCst);
        Timestamp::from_millisecond(millisecond).expect("a manual clock stays within jiff's range")
    }

    /// Lets time pass: the clock moves forward, and so does monotonic time.
    pub fn advance(&self, by: Duration) {
        let by_ms = i64::try_from(by.as_millis()).expect("a step fits 64 bits of milliseconds");
        self.0.now_ms.fetch_add(by_ms, Ordering::SeqCst);
        self.0.passed_ms.fetch_add(by_ms.unsigned_abs(), Ordering::SeqCst);
    }

    /// Sets it, forward or back, without any time passing: clocks do step.
    pub fn set(&self, now: Timestamp) {
        self.0.now_ms.store(now.as_millisecond(), Ordering::SeqCst);
    }
}
