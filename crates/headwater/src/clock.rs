//! Time: the database's own, or one that tests move by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;

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
}

/// A clock for tests: it stands still until moved. Clones share the same hands.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that stands at the given time, to the millisecond.
    pub fn at(now: Timestamp) -> Self {
        ManualClock(Arc::new(AtomicI64::new(now.as_millisecond())))
    }

    /// The time it shows.
    pub fn now(&self) -> Timestamp {
        let millisecond = self.0.load(Ordering::SeqCst);
        Timestamp::from_millisecond(millisecond).expect("a manual clock stays within jiff's range")
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        let by_ms = i64::try_from(by.as_millis()).expect("a step fits 64 bits of milliseconds");
        self.0.fetch_add(by_ms, Ordering::SeqCst);
    }

    /// Sets it, also backwards: database clocks do jump.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_millisecond(), Ordering::SeqCst);
    }
}
