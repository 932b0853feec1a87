//! Sliding windows: rates and percentiles of the last minute, O(1) per record and in memory that does not grow.
//!
//! A window is a ring of slots. A record goes into the slot of its time and first clears what a slot holds of an
//! earlier round, so nothing has to run while nothing happens. Time is handed in: tests do not sleep.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::health::Percentiles;

/// How far windows look back unless told otherwise.
pub(crate) const WINDOW_DEFAULT: Duration = Duration::from_secs(60);
/// Slots of a window, the one being filled apart: one per second at the default width.
const SLOTS: u64 = 60;
/// The ring holds the full slots and the one being filled.
const RING: u64 = SLOTS + 1;
/// Shortest and longest window: below, slots would be narrower than clocks are good; above, "recent" means nothing.
const WINDOW_MS_MIN: u64 = 1_000;
const WINDOW_MS_MAX: u64 = 3_600_000;

/// Buckets per doubling: a bucket spans a sixteenth of its start, so its middle is off by 1/32 at most.
const STEPS: usize = 16;
const STEPS_LOG2: u32 = STEPS.trailing_zeros();
/// The doubling that holds 1 µs (2^9 ns is below it) and the number of doublings up to that of 1 h.
const DOUBLING_FIRST: u32 = 9;
const DOUBLINGS: usize = 33;
const DURATION_NS_MIN: u64 = 1_000;
const DURATION_NS_MAX: u64 = 3_600_000_000_000;

/// Milliseconds on a clock that never goes back, for records made now.
pub(crate) fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Where the slots lie on the time line.
#[derive(Clone, Copy, Debug)]
struct Frame {
    slot_ms: u64,
    since_ms: u64,
}

impl Frame {
    fn new(window: Duration, since_ms: u64) -> Self {
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        Frame { slot_ms: window_ms.clamp(WINDOW_MS_MIN, WINDOW_MS_MAX).div_ceil(SLOTS), since_ms }
    }

    /// The number of the slot, counted from 1: a stamp of 0 is a slot never used.
    fn stamp(self, now_ms: u64) -> u64 {
        now_ms / self.slot_ms + 1
    }

    fn is_recent(self, stamp: u64, now_ms: u64) -> bool {
        let current = self.stamp(now_ms);
        stamp <= current && stamp + SLOTS >= current && stamp > 0
    }

    /// The seconds that recent slots cover: less than the window while it is young, never less than a slot.
    fn covered_seconds(self, now_ms: u64) -> f64 {
        let oldest_ms = (self.stamp(now_ms) - 1).saturating_sub(SLOTS) * self.slot_ms;
        let covered_ms = now_ms.saturating_sub(oldest_ms.max(self.since_ms)).max(self.slot_ms);
        Duration::from_millis(covered_ms).as_secs_f64()
    }
}

/// The ring's place for a stamp.
fn place(stamp: u64) -> usize {
    usize::try_from(stamp % RING).expect("a remainder of the ring fits")
}

/// How often something happened per second.
#[derive(Debug)]
pub(crate) struct RateWindow {
    frame: Frame,
    /// Stamp in the upper half, count in the lower: both change in one step and no lock is needed.
    slots: Box<[AtomicU64]>,
}

impl RateWindow {
    pub(crate) fn new(window: Duration, since_ms: u64) -> Self {
        let slots = (0..RING).map(|_| AtomicU64::new(0)).collect();
        RateWindow { frame: Frame::new(window, since_ms), slots }
    }

    /// Counts `by` more at this time.
    pub(crate) fn add(&self, by: u64, now_ms: u64) {
        let stamp = self.frame.stamp(now_ms) & u64::from(u32::MAX);
        let slot = &self.slots[place(stamp)];
        let add = |held: u64| {
            // A straggler whose slot was given to a later time counts there: late is better than lost.
            let (kept, count) =
                if held >> 32 < stamp { (stamp, 0) } else { (held >> 32, held & u64::from(u32::MAX)) };
            Some(kept << 32 | count.saturating_add(by).min(u64::from(u32::MAX)))
        };
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// The rate per second over the window.
    pub(crate) fn per_second(&self, now_ms: u64) -> f64 {
        let recent = |slot: &AtomicU64| {
            let held = slot.load(Ordering::Relaxed);
            if self.frame.is_recent(held >> 32, now_ms) { held & u64::from(u32::MAX) } else { 0 }
        };
        let total: u64 = self.slots.iter().map(recent).sum();
        // Exact up to 2^53 records a minute.
        total as f64 / self.frame.covered_seconds(now_ms)
    }
}

/// How long something took: percentiles within 5 % between 1 µs and 1 h.
#[derive(Debug)]
pub(crate) struct DurationWindow {
    frame: Frame,
    slots: Mutex<Box<[Slot]>>,
}

/// The buckets of one slot; those of a doubling are made when it is first met, since durations cluster.
#[derive(Debug)]
struct Slot {
    stamp: u64,
    doublings: [Option<Box<[u32; STEPS]>>; DOUBLINGS],
}

impl Slot {
    fn unused() -> Self {
        Slot { stamp: 0, doublings: [const { None }; DOUBLINGS] }
    }

    /// Empties it for a later time and keeps what was allocated: the next round will need much the same.
    fn restart(&mut self, stamp: u64) {
        self.stamp = stamp;
        self.doublings.iter_mut().flatten().for_each(|steps| **steps = [0; STEPS]);
    }
}

impl DurationWindow {
    pub(crate) fn new(window: Duration, since_ms: u64) -> Self {
        let slots = (0..RING).map(|_| Slot::unused()).collect();
        DurationWindow { frame: Frame::new(window, since_ms), slots: Mutex::new(slots) }
    }

    /// Records one duration at this time.
    pub(crate) fn record(&self, took: Duration, now_ms: u64) {
        let stamp = self.frame.stamp(now_ms);
        let (doubling, step) = bucket_of(took);
        // Poisoned means that a record was lost, not that the rest is wrong.
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut slots[place(stamp)];
        if slot.stamp < stamp {
            slot.restart(stamp);
        }
        let count = &mut slot.doublings[doubling].get_or_insert_default()[step];
        *count = count.saturating_add(1);
    }

    /// The percentiles over the window; `None` if nothing was recorded in it.
    pub(crate) fn percentiles(&self, now_ms: u64) -> Option<Percentiles> {
        let counts = self.merged(now_ms);
        let total: u64 = counts.iter().flatten().sum();
        if total == 0 {
            return None;
        }
        let quantile = |percent: u64| {
            let rank = (total * percent).div_ceil(100).max(1);
            let mut seen = 0;
            let buckets = (0..DOUBLINGS).flat_map(|doubling| (0..STEPS).map(move |step| (doubling, step)));
            buckets
                .into_iter()
                .find(|&(doubling, step)| {
                    seen += counts[doubling][step];
                    seen >= rank
                })
                .map(|(doubling, step)| middle_of(doubling, step))
                .expect("the rank is at most the total")
        };
        Some(Percentiles { count: total, p50: quantile(50), p95: quantile(95), p99: quantile(99) })
    }

    /// The mean over the window, as near as percentiles are; `None` if nothing was recorded in it.
    pub(crate) fn mean(&self, now_ms: u64) -> Option<Duration> {
        let counts = self.merged(now_ms);
        let (mut total, mut seconds) = (0, 0.0);
        for (doubling, steps) in counts.iter().enumerate() {
            for (step, count) in steps.iter().enumerate().filter(|(_, count)| **count > 0) {
                total += count;
                seconds += *count as f64 * middle_of(doubling, step).as_secs_f64();
            }
        }
        (total > 0).then(|| Duration::from_secs_f64(seconds / total as f64))
    }

    fn merged(&self, now_ms: u64) -> [[u64; STEPS]; DOUBLINGS] {
        let mut counts = [[0; STEPS]; DOUBLINGS];
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in slots.iter().filter(|slot| self.frame.is_recent(slot.stamp, now_ms)) {
            for (sums, steps) in counts.iter_mut().zip(&slot.doublings) {
                let Some(steps) = steps else { continue };
                sums.iter_mut().zip(steps.iter()).for_each(|(sum, count)| *sum += u64::from(*count));
            }
        }
        counts
    }
}

/// Which bucket holds a duration: its doubling by the highest bit, the step by the four bits below.
fn bucket_of(took: Duration) -> (usize, usize) {
    let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).clamp(DURATION_NS_MIN, DURATION_NS_MAX);
    let highest = ns.ilog2();
    let step = (ns >> (highest - STEPS_LOG2)) as usize % STEPS;
    ((highest - DOUBLING_FIRST) as usize, step)
}

fn middle_of(doubling: usize, step: usize) -> Duration {
    let start = 1_u64 << (u32::try_from(doubling).expect("few doublings") + DOUBLING_FIRST);
    let width = start >> STEPS_LOG2;
    let ns = start + width * step as u64 + width / 2;
    Duration::from_nanos(ns.clamp(DURATION_NS_MIN, DURATION_NS_MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(found: Duration, exact: Duration) -> bool {
        (found.as_secs_f64() - exact.as_secs_f64()).abs() <= 0.05 * exact.as_secs_f64()
    }

    /// Durations spread evenly over the doublings, as latencies are.
    fn durations() -> impl Strategy<Value = Vec<Duration>> {
        let one = (0.0..=1.0_f64).prop_map(|place| {
            let ns = DURATION_NS_MIN as f64 * (DURATION_NS_MAX as f64 / DURATION_NS_MIN as f64).powf(place);
            Duration::from_nanos((ns as u64).clamp(DURATION_NS_MIN, DURATION_NS_MAX))
        });
        prop::collection::vec(one, 1..400)
    }

    proptest! {
        #[test]
        fn percentiles_are_within_five_percent(durations in durations(), start_ms in 0..10_000_000_u64) {
            let window = DurationWindow::new(WINDOW_DEFAULT, start_ms);
            for (at, took) in durations.iter().enumerate() {
                window.record(*took, start_ms + at as u64 * 100);
            }
            let found = window.percentiles(start_ms + durations.len() as u64 * 100).unwrap();
            let mut sorted = durations.clone();
            sorted.sort();
            let exact = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100) - 1];
            prop_assert_eq!(found.count, durations.len() as u64);
            let mean = durations.iter().sum::<Duration>() / u32::try_from(durations.len()).unwrap();
            let near = window.mean(start_ms + durations.len() as u64 * 100).unwrap();
            prop_assert!(close(near, mean), "mean {:?} {:?}", near, mean);
            prop_assert!(close(found.p50, exact(50)), "p50 {:?} {:?}", found.p50, exact(50));
            prop_assert!(close(found.p95, exact(95)), "p95 {:?} {:?}", found.p95, exact(95));
            prop_assert!(close(found.p99, exact(99)), "p99 {:?} {:?}", found.p99, exact(99));
        }
    }

    #[test]
    fn durations_out_of_range_count_at_its_ends() {
        let window = DurationWindow::new(WINDOW_DEFAULT, 0);
        window.record(Duration::ZERO, 0);
        assert!(close(window.percentiles(0).unwrap().p50, Duration::from_micros(1)));
        for _ in 0..200 {
            window.record(Duration::MAX, 0);
        }
        assert!(close(window.percentiles(0).unwrap().p50, Duration::from_secs(3600)));
    }

    #[test]
    fn window_forgets_what_is_older() {
        let window = DurationWindow::new(WINDOW_DEFAULT, 0);
        window.record(Duration::from_secs(9), 500);
        window.record(Duration::from_millis(1), 30_000);
        assert_eq!(window.percentiles(60_400).unwrap().count, 2);
        assert_eq!(window.percentiles(61_000).unwrap().count, 1);
        assert_eq!(window.percentiles(600_000), None);
        // The slot of long ago is used again.
        window.record(Duration::from_millis(1), 30_000 + RING * 1_000);
        assert_eq!(window.percentiles(30_000 + RING * 1_000).unwrap().count, 1);
    }

    #[test]
    fn rate_counts_the_window_and_nothing_before() {
        let rate = RateWindow::new(WINDOW_DEFAULT, 0);
        for second in 0..200 {
            rate.add(5, second * 1_000);
            rate.add(5, second * 1_000 + 999);
        }
        assert_eq!(rate.per_second(200 * 1_000 - 1).round(), 10.0);
        // Nothing comes any more: it fades, and is gone after the window.
        assert_eq!(rate.per_second(230 * 1_000).round(), 5.0);
        assert_eq!(rate.per_second(261 * 1_000), 0.0);
    }

    #[test]
    fn young_window_divides_by_its_age() {
        let rate = RateWindow::new(WINDOW_DEFAULT, 100_000);
        rate.add(40, 100_010);
        assert_eq!(rate.per_second(100_020), 40.0, "less than a slot old counts as a slot");
        assert_eq!(rate.per_second(104_000), 10.0);
    }

    #[test]
    fn width_is_configurable() {
        let rate = RateWindow::new(Duration::from_secs(600), 0);
        rate.add(600, 1_000);
        assert_eq!(rate.per_second(600_000), 1.0);
        assert_eq!(rate.per_second(620_000), 0.0);
    }

    #[test]
    fn concurrent_records_all_count() {
        let rate = RateWindow::new(WINDOW_DEFAULT, 0);
        let window = DurationWindow::new(WINDOW_DEFAULT, 0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (rate, window) = (&rate, &window);
                scope.spawn(move || {
                    for at in 0..1_000 {
                        rate.add(1, at + thread);
                        window.record(Duration::from_millis(1), at + thread);
                    }
                });
            }
        });
        assert_eq!(rate.per_second(1_000), 4_000.0);
        assert_eq!(window.percentiles(1_000).unwrap().count, 4_000);
    }
}
