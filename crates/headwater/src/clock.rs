//! Time: of the database, or of a manual clock in tests.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;

pub(crate) mod guard;

/// The start of this process's monotonic time.
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Where "now" comes from for leases, retries, delays and dedup windows.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The database's clock (PostgreSQL), or this machine's (SQLite). Clocks of application machines may be wrong by
    /// hours; all processes share the database's.
    #[default]
    Database,
    /// A clock that stands still until a test moves it.
    Manual(ManualClock),
}

impl Clock {
    /// The time to bind into a statement; `None` lets the database use its own clock.
    pub fn injected(&self) -> Option<Timestamp> {
        match self {
            Clock::Database => None,
            Clock::Manual(clock) => Some(clock.now()),
        }
    }

    /// Time since the start of this process that steps of the clock do not affect. It may stand still while the machine
    /// is suspended.
    pub(crate) fn monotonic(&self) -> Duration {
        match self {
            Clock::Database => BEGUN.elapsed(),
            Clock::Manual(clock) => Duration::from_millis(clock.0.passed_ms.load(Ordering::SeqCst)),
        }
    }
}

/// A clock for tests: it stands still until it is moved. Clones share the same time.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Hands>);

#[derive(Debug)]
struct Hands {
    now_ms: AtomicI64,
    /// How much time passed; steps do not count.
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

    /// Lets time pass: both the clock and monotonic time move forward.
    pub fn advance(&self, by: Duration) {
        let by_ms = i64::try_from(by.as_millis()).expect("a step fits 64 bits of milliseconds");
        self.0.now_ms.fetch_add(by_ms, Ordering::SeqCst);
        self.0.passed_ms.fetch_add(by_ms.unsigned_abs(), Ordering::SeqCst);
    }

    /// Sets the clock, forward or back, without time passing: a step of the clock.
    pub fn set(&self, now: Timestamp) {
        self.0.now_ms.store(now.as_millisecond(), Ordering::SeqCst);
    }
}
