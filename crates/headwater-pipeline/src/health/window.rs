//! Sliding windows: rates and percentiles of the last minute, O(1) per record and in memory that does not grow.
//!
//! A window is a row of slots. A record goes into the slot of its time; a new slot first removes those that have left the window, so an
//! idle window needs no timer. The caller passes the time in milliseconds on a clock of its own: tests do not sleep.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

/// Slots of a window, the one being filled apart: one per second at the default width.
const SLOTS: u64 = 60;
/// Below, slots would be narrower than the clock's precision; above, figures are not recent.
const WINDOW_MS_MIN: u64 = 1_000;
const WINDOW_MS_MAX: u64 = 3_600_000;
/// The range of durations, in microseconds. What lies outside counts at its ends.
const DURATION_US_MIN: u64 = 1;
const DURATION_US_MAX: u64 = 3_600_000_000;

/// How often something happened per second.
#[derive(Debug)]
pub struct RateWindow(Mutex<Slots<u64>>);

/// How long something took: percentiles within 1 %.
#[derive(Debug)]
pub struct DurationWindow(Mutex<Slots<Histogram<u32>>>);

impl RateWindow {
    /// A window of this width that begins at 0 ms.
    pub fn new(window: Duration) -> Self {
        RateWindow(Mutex::new(Slots::new(window)))
    }

    /// Counts `by` more at this time.
    pub fn add(&self, by: u64, now_ms: u64) {
        *lock(&self.0).at(now_ms, |_| 0) += by;
    }

    /// The rate per second over the window, or over its age while it is younger than its width.
    pub fn per_second(&self, now_ms: u64) -> f64 {
        let slots = lock(&self.0);
        let total: u64 = slots.recent(now_ms).sum();
        // Exact up to 2^53 records.
        total as f64 / slots.covered_seconds(now_ms)
    }
}

impl DurationWindow {
    /// A window of this width that begins at 0 ms.
    pub fn new(window: Duration) -> Self {
        DurationWindow(Mutex::new(Slots::new(window)))
    }

    /// Records one duration at this time.
    pub fn record(&self, took: Duration, now_ms: u64) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).clamp(DURATION_US_MIN, DURATION_US_MAX);
        let mut slots = lock(&self.0);
        // A slot that left the window is used again: its durations need much the same memory.
        let histogram = slots.at(now_ms, |former| {
            former.map_or_else(empty, |mut histogram| {
                histogram.reset();
                histogram
            })
        });
        histogram.record(us).expect("the histogram grows");
    }

    /// The durations of the window in microseconds, added to those in `sum`.
    pub(super) fn add_to(&self, sum: &mut Histogram<u32>, now_ms: u64) {
        for histogram in lock(&self.0).recent(now_ms) {
            sum.add(histogram).expect("the histogram grows");
        }
    }
}

/// A histogram of microseconds with no record, which grows to its longest duration.
pub(super) fn empty() -> Histogram<u32> {
    Histogram::new(2).expect("a valid precision")
}

/// Slots with a record, stamps rising.
#[derive(Debug)]
struct Slots<T> {
    slot_ms: u64,
    slots: VecDeque<(u64, T)>,
}

impl<T> Slots<T> {
    fn new(window: Duration) -> Self {
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        let slot_ms = window_ms.clamp(WINDOW_MS_MIN, WINDOW_MS_MAX).div_ceil(SLOTS);
        Slots { slot_ms, slots: VecDeque::new() }
    }

    fn is_recent(&self, stamp: u64, now_ms: u64) -> bool {
        stamp + SLOTS >= now_ms / self.slot_ms
    }

    /// The slot of this time, made from one that left the window if there is one.
    fn at(&mut self, now_ms: u64, make: impl FnOnce(Option<T>) -> T) -> &mut T {
        let stamp = now_ms / self.slot_ms;
        // A record that comes late counts in the newest slot.
        if self.slots.back().is_none_or(|(newest, _)| *newest < stamp) {
            let left = self.slots.iter().take_while(|(stamp, _)| !self.is_recent(*stamp, now_ms)).count();
            let former = self.slots.drain(..left).next_back();
            self.slots.push_back((stamp, make(former.map(|(_, slot)| slot))));
        }
        &mut self.slots.back_mut().expect("a slot of this time or later exists").1
    }

    fn recent(&self, now_ms: u64) -> impl Iterator<Item = &T> {
        self.slots.iter().filter(move |(stamp, _)| self.is_recent(*stamp, now_ms)).map(|(_, slot)| slot)
    }

    /// The seconds that recent slots cover: less than the window while it is young, never less than a slot.
    fn covered_seconds(&self, now_ms: u64) -> f64 {
        let oldest_ms = (now_ms / self.slot_ms).saturating_sub(SLOTS) * self.slot_ms;
        Duration::from_millis((now_ms - oldest_ms).max(self.slot_ms)).as_secs_f64()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Poisoned means that a record was lost, not that the rest is wrong.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_counts_the_window_and_nothing_before() {
        let rate = RateWindow::new(Duration::from_secs(60));
        for second in 0..200 {
            rate.add(5, second * 1_000);
            rate.add(5, second * 1_000 + 999);
        }
        assert_eq!(rate.per_second(200 * 1_000 - 1).round(), 10.0);
        assert_eq!(rate.per_second(230 * 1_000).round(), 5.0, "it declines without records");
        assert_eq!(rate.per_second(261 * 1_000), 0.0);
        assert_eq!(lock(&rate.0).slots.len() as u64, SLOTS + 1, "memory is bounded");
    }

    #[test]
    fn young_window_divides_by_its_age() {
        let rate = RateWindow::new(Duration::from_secs(60));
        rate.add(40, 10);
        assert_eq!(rate.per_second(20), 40.0, "less than a slot old counts as a slot");
        assert_eq!(rate.per_second(4_000), 10.0);
    }

    #[test]
    fn width_is_configurable() {
        let (narrow, wide) =
            (RateWindow::new(Duration::from_secs(30)), RateWindow::new(Duration::from_secs(600)));
        for rate in [&narrow, &wide] {
            rate.add(600, 1_000);
        }
        assert_eq!(wide.per_second(600_000), 1.0);
        assert_eq!(narrow.per_second(29_999).round(), 20.0);
        assert_eq!(narrow.per_second(40_000), 0.0);
    }

    #[test]
    fn late_record_counts_in_the_newest_slot() {
        let rate = RateWindow::new(Duration::from_secs(60));
        rate.add(1, 5_000);
        rate.add(1, 4_000);
        assert_eq!(rate.per_second(10_000), 0.2);
    }

    #[test]
    fn durations_leave_the_window_and_their_slot_is_used_again() {
        let window = DurationWindow::new(Duration::from_secs(60));
        window.record(Duration::MAX, 0);
        window.record(Duration::from_millis(7), 120_000);
        let mut sum = empty();
        window.add_to(&mut sum, 120_000);
        assert_eq!(sum.len(), 1);
        assert_eq!(lock(&window.0).slots.len(), 1);
        assert!((sum.mean() - 7_000.0).abs() < 70.0, "{}", sum.mean());
    }
}
