//! The clock guard: distinguishes a step of the database's clock from time that passed.
//!
//! Deadlines and timestamps are stored in the database's time. When its clock steps by an hour, they are all an hour
//! off: leases of living owners appear expired, or timestamps lie in the future. The store keeps one row: the latest
//! time seen, and by how much stored deadlines were moved so far, `moved_ms`. So `time - moved_ms` is continuous across
//! every step that was handled. Each process keeps its last reading together with its monotonic clock. A reading that
//! does not fit both is a step, and the process moves every deadline by it, in the transaction that adds the step to
//! `moved_ms`: of many processes that notice the same step, the first one moves the deadlines, and for the others the
//! sum explains the reading.
//!
//! A process that just started has no reading to compare with. It notices a step back, because the stored time lies
//! ahead. A step forward appears to it as time in which no process ran.

use std::time::Duration;

/// How far a clock may differ from the expected time; a smaller difference is not a step.
pub(crate) const STEP_MIN_MS: i64 = 2_000;
/// How often a process that holds leases reads the clock.
pub(crate) const READ_EVERY: Duration = Duration::from_secs(4);
/// A stored time that a steady process wrote this recently contradicts a step forward: the reading process itself was
/// suspended. A process counts as steady after it has run this long.
pub(crate) const STEADY: Duration = Duration::from_secs(15);

/// The database's time, and this process's monotonic time before and after it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) now_ms: i64,
    pub(crate) asked: Duration,
    pub(crate) answered: Duration,
}

/// The stored row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stored {
    /// The latest time any process saw; `None` before the first.
    pub(crate) latest_ms: Option<i64>,
    /// The latest time a steady process saw. Only where processes may be suspended independently of each other.
    pub(crate) steady_ms: Option<i64>,
    /// By how much deadlines were moved so far.
    pub(crate) moved_ms: i64,
}

/// The last reading of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    reading: Reading,
    moved_ms: i64,
    /// When this process read for the first time.
    since: Duration,
}

impl Memory {
    /// The memory after a reading, once deadlines are moved as it requires.
    pub(crate) fn after(before: Option<Memory>, reading: Reading, moved_ms: i64) -> Self {
        Memory { reading, moved_ms, since: before.map_or(reading.asked, |memory| memory.since) }
    }

    /// By how much deadlines had been moved at that reading.
    pub(crate) fn moved_ms(&self) -> i64 {
        self.moved_ms
    }

    /// Whether this process has run long enough to count as steady.
    #[cfg(any(feature = "postgres", test))]
    pub(crate) fn is_steady(&self) -> bool {
        self.reading.answered.saturating_sub(self.since) >= STEADY
    }

    /// Whether it is time to read again.
    pub(crate) fn is_old(&self, monotonic: Duration) -> bool {
        monotonic.saturating_sub(self.reading.asked) >= READ_EVERY
    }

    /// The time the database shows at this moment if its clock has not stepped.
    #[cfg(any(feature = "postgres", test))]
    pub(crate) fn expected_ms(&self, monotonic: Duration) -> i64 {
        self.reading.now_ms.saturating_add(millis(monotonic.saturating_sub(self.reading.asked)))
    }

    /// How far the clock certainly ran ahead of the time that passed (behind if negative), not counting moves since
    /// then.
    fn ahead_ms(&self, reading: &Reading, stored: &Stored) -> i64 {
        let ran = reading.now_ms.saturating_sub(self.reading.now_ms);
        let moved = stored.moved_ms.saturating_sub(self.moved_ms);
        let at_most = millis(reading.answered.saturating_sub(self.reading.asked));
        let at_least = millis(reading.asked.saturating_sub(self.reading.answered));
        let ahead = |passed: i64| ran.saturating_sub(moved).saturating_sub(passed);
        match (ahead(at_most), ahead(at_least)) {
            (forward, _) if forward > 0 => forward,
            (_, back) if back < 0 => back,
            _ => 0,
        }
    }
}

/// By how many milliseconds the clock stepped and deadlines must be moved; 0 if it did not.
pub(crate) fn step_ms(memory: Option<&Memory>, reading: &Reading, stored: &Stored) -> i64 {
    let ahead = memory.map_or(0, |memory| memory.ahead_ms(reading, stored));
    let behind = stored.latest_ms.map_or(0, |latest_ms| reading.now_ms.saturating_sub(latest_ms).min(0));
    if ahead.min(behind) < -STEP_MIN_MS {
        return ahead.min(behind);
    }
    let vouched =
        stored.steady_ms.is_some_and(|at_ms| reading.now_ms.saturating_sub(at_ms) <= millis(STEADY));
    if ahead > STEP_MIN_MS && !vouched { ahead } else { 0 }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
