//! Sliding windows: rates and percentiles of the last minute, O(1) per record and in memory that does not grow.
//!
//! A window is a ring of slots. A record goes into the slot of its time and first clears a slot that has left the
//! window, so an idle window needs no timer. The caller passes the time: tests do not sleep. Exported in `health`, for programs that
//! measure more than the library does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::health::Percentiles;

/// The width of a window unless configured.
pub(crate) const WINDOW_DEFAULT: Duration = Duration::from_secs(60);
/// Slots of a window, the one being filled apart: one per second at the default width.
const SLOTS: u64 = 60;
/// The ring holds the full slots and the one being filled.
const RING: u64 = SLOTS + 1;
/// Shortest and longest window: below, slots would be narrower than the clock's precision; above, figures are not recent.
const WINDOW_MS_MIN: u64 = 1_000;
const WINDOW_MS_MAX: u64 = 3_600_000;

/// One significant digit is 16 buckets per doubling: the middle of a bucket is off by 1/32 at most.
const DIGITS: u8 = 1;
/// The width of the narrowest buckets, which reach to 2 µs: at 1 µs that is still within 1/32.
const RESOLUTION_NS: u64 = 64;
const DURATION_NS_MIN: u64 = 1_000;
const DURATION_NS_MAX: u64 = 3_600_000_000_000;

/// Milliseconds on a monotonic clock, for records made now.
pub(crate) fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// How time is divided into slots.
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

/// The index of a stamp's slot in the ring.
fn index(stamp: u64) -> usize {
    usize::try_from(stamp % RING).expect("a remainder of the ring fits")
}

/// How often something happened per second, over a sliding window. Recording is O(1) and takes no lock.
///
/// Times are milliseconds on a clock of the caller's own that never goes back.
///
/// ```
/// use std::time::Duration;
/// use headwater::health::{DurationWindow, Durations, RateWindow};
///
/// let (rate, times) = (RateWindow::new(Duration::from_secs(60), 0), DurationWindow::new(Duration::from_secs(60), 0));
/// for second in 1..=10 {
///     rate.add(5, second * 1_000);
///     times.record(Duration::from_millis(second), second * 1_000);
/// }
/// assert_eq!(rate.per_second(10_000), 5.0);
/// // Several windows as one, each with the time on its own clock.
/// let mut all = Durations::default();
/// all.add(&times, 10_000);
/// assert_eq!(all.percentiles().expect("some were recorded").count, 10);
/// ```
#[derive(Debug)]
pub struct RateWindow {
    frame: Frame,
    /// Stamp in the upper half, count in the lower: both change in one atomic step, without a lock.
    slots: Box<[AtomicU64]>,
}

impl RateWindow {
    /// A window of this width, between 1 s and 1 h, that begins at this time.
    pub fn new(window: Duration, since_ms: u64) -> Self {
        let slots = (0..RING).map(|_| AtomicU64::new(0)).collect();
        RateWindow { frame: Frame::new(window, since_ms), slots }
    }

    /// Counts `by` more at this time. A sixtieth of the window counts 2^32 - 1 at most.
    pub fn add(&self, by: u64, now_ms: u64) {
        let stamp = self.frame.stamp(now_ms) & u64::from(u32::MAX);
        let slot = &self.slots[index(stamp)];
        let add = |held: u64| {
            // A straggler whose slot was reused for a later time counts there: late is better than lost.
            let (kept, count) =
                if held >> 32 < stamp { (stamp, 0) } else { (held >> 32, held & u64::from(u32::MAX)) };
            Some(kept << 32 | count.saturating_add(by).min(u64::from(u32::MAX)))
        };
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// The rate per second over the window, or over its age while it is younger than its width.
    pub fn per_second(&self, now_ms: u64) -> f64 {
        let recent = |slot: &AtomicU64| {
            let held = slot.load(Ordering::Relaxed);
            if self.frame.is_recent(held >> 32, now_ms) { held & u64::from(u32::MAX) } else { 0 }
        };
        let total: u64 = self.slots.iter().map(recent).sum();
        // Exact up to 2^53 records a minute.
        total as f64 / self.frame.covered_seconds(now_ms)
    }
}

/// How long something took, over a sliding window: percentiles within 5 % between 1 µs and 1 h. Recording is O(1).
#[derive(Debug)]
pub struct DurationWindow {
    frame: Frame,
    /// At most [`RING`] slots, stamps rising. A slot is allocated when its time first has a record.
    slots: Mutex<VecDeque<Slot>>,
}

#[derive(Debug)]
struct Slot {
    stamp: u64,
    /// In nanoseconds. It grows to the longest duration: up to 1 ms takes 700 bytes, up to 1 h 2 KB.
    durations: Histogram<u32>,
}

impl DurationWindow {
    /// A window of this width, between 1 s and 1 h, that begins at this time.
    pub fn new(window: Duration, since_ms: u64) -> Self {
        DurationWindow { frame: Frame::new(window, since_ms), slots: Mutex::default() }
    }

    /// Records one duration at this time.
    pub fn record(&self, took: Duration, now_ms: u64) {
        let stamp = self.frame.stamp(now_ms);
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).clamp(DURATION_NS_MIN, DURATION_NS_MAX);
        let mut slots = self.lock();
        // A straggler counts in the newest slot: late is better than lost.
        if slots.back().is_none_or(|newest| newest.stamp < stamp) {
            let left = slots.iter().take_while(|slot| !self.frame.is_recent(slot.stamp, now_ms)).count();
            // Reused, because the durations of the next slot need much the same memory.
            let mut durations = slots.drain(..left).next_back().map_or_else(empty, |slot| slot.durations);
            durations.reset();
            slots.push_back(Slot { stamp, durations });
        }
        let newest = slots.back_mut().expect("a slot of this time or later exists");
        newest.durations.record(ns).expect("the histogram grows");
    }

    /// The percentiles over the window; `None` if nothing was recorded in it.
    pub fn percentiles(&self, now_ms: u64) -> Option<Percentiles> {
        self.durations(now_ms).percentiles()
    }

    /// The mean over the window, as exact as percentiles are; `None` if nothing was recorded in it.
    pub fn mean(&self, now_ms: u64) -> Option<Duration> {
        self.durations(now_ms).mean()
    }

    fn durations(&self, now_ms: u64) -> Durations {
        let mut durations = Durations::default();
        durations.add(self, now_ms);
        durations
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Slot>> {
        // Poisoned means that a record was lost, not that the rest is wrong.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The durations of one or more windows at one moment.
#[derive(Debug, Default)]
pub struct Durations(Option<Histogram<u32>>);

impl Durations {
    /// Adds those that a window has at this time of its clock.
    pub fn add(&mut self, window: &DurationWindow, now_ms: u64) {
        let slots = window.lock();
        for slot in slots.iter().filter(|slot| window.frame.is_recent(slot.stamp, now_ms)) {
            match &mut self.0 {
                Some(sum) => sum.add(&slot.durations).expect("the histogram grows"),
                none => *none = Some(slot.durations.clone()),
            }
        }
    }

    /// The percentiles; `None` without any duration.
    pub fn percentiles(&self) -> Option<Percentiles> {
        let durations = self.0.as_ref()?;
        let at = |quantile| {
            // The middle of the bucket halves the error.
            Duration::from_nanos(durations.median_equivalent(durations.value_at_quantile(quantile)))
        };
        Some(Percentiles { count: durations.len(), p50: at(0.5), p95: at(0.95), p99: at(0.99) })
    }

    /// The mean, as exact as percentiles are; `None` without any duration.
    pub fn mean(&self) -> Option<Duration> {
        self.0.as_ref().map(|durations| Duration::from_nanos(durations.mean() as u64))
    }
}

fn empty() -> Histogram<u32> {
    let mut histogram =
        Histogram::new_with_bounds(RESOLUTION_NS, 2 * RESOLUTION_NS, DIGITS).expect("constants in range");
    histogram.auto(true);
    histogram
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
        let one = (0.0..=1.0_f64).prop_map(|power| {
            let ns = DURATION_NS_MIN as f64 * (DURATION_NS_MAX as f64 / DURATION_NS_MIN as f64).powf(power);
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
        // A slot that left the window is used again.
        window.record(Duration::from_millis(1), 30_000 + RING * 1_000);
        assert_eq!(window.percentiles(30_000 + RING * 1_000).unwrap().count, 1);
    }

    #[test]
    fn memory_is_bounded_and_small_for_short_durations() {
        let window = DurationWindow::new(WINDOW_DEFAULT, 0);
        for at_ms in (0..600_000).step_by(100) {
            window.record(Duration::from_micros(1 + at_ms % 2_000), at_ms);
        }
        let bytes = |slot: &Slot| slot.durations.distinct_values() * size_of::<u32>() + size_of::<Slot>();
        let sizes: Vec<_> = window.lock().iter().map(bytes).collect();
        assert_eq!(sizes.len() as u64, RING);
        assert!(sizes.iter().all(|bytes| *bytes < 900), "{sizes:?}");
        window.record(Duration::MAX, 600_000);
        assert!(bytes(window.lock().back().unwrap()) < 3_000);
        window.record(Duration::ZERO, 6_000_000);
        assert_eq!(window.lock().len(), 1, "slots that left the window are freed");
    }

    #[test]
    fn durations_of_several_windows_are_one_sum() {
        let windows = [DurationWindow::new(WINDOW_DEFAULT, 0), DurationWindow::new(WINDOW_DEFAULT, 0)];
        let mut all = Durations::default();
        assert_eq!((all.percentiles(), all.mean()), (None, None));
        for (window, ms) in windows.iter().zip([10, 30]) {
            (0..50).for_each(|_| window.record(Duration::from_millis(ms), 0));
            all.add(window, 0);
        }
        let found = all.percentiles().unwrap();
        assert_eq!(found.count, 100);
        assert!(close(found.p50, Duration::from_millis(10)) && close(found.p95, Duration::from_millis(30)));
        assert!(close(all.mean().unwrap(), Duration::from_millis(20)));
    }

    #[test]
    fn straggler_counts() {
        let window = DurationWindow::new(WINDOW_DEFAULT, 0);
        window.record(Duration::from_millis(1), 5_000);
        window.record(Duration::from_millis(1), 4_999);
        assert_eq!(window.percentiles(5_000).unwrap().count, 2);
    }

    #[test]
    fn rate_counts_the_window_and_nothing_before() {
        let rate = RateWindow::new(WINDOW_DEFAULT, 0);
        for second in 0..200 {
            rate.add(5, second * 1_000);
            rate.add(5, second * 1_000 + 999);
        }
        assert_eq!(rate.per_second(200 * 1_000 - 1).round(), 10.0);
        // Without further records the rate declines, and is zero after the window.
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
