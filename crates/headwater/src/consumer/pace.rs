//! How much to claim: enough that handlers never wait, and no more than they handle soon.
//!
//! Messages that are claimed and not started are withheld from other processes, so the buffer holds what was handled in
//! a quarter of a second recently. With slow handlers that is almost nothing; with fast ones it grows until the cost of
//! claims is negligible.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// How much work to keep ready.
const AHEAD: Duration = Duration::from_millis(250);
/// Most messages of one claim.
const CLAIM_MAX: usize = 5_000;
/// How often the rate is measured.
const MEASURE_EVERY: Duration = Duration::from_millis(50);

/// The pace of one group.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_max: usize,
    inner: Mutex<Inner>,
    /// The goal as the workers read it.
    goal: std::sync::atomic::AtomicUsize,
    done: std::sync::atomic::AtomicU64,
}

#[derive(Debug)]
struct Inner {
    looked_at: Instant,
    done_then: u64,
    /// Messages per second, smoothed; `None` before anything was handled.
    rate: Option<f64>,
    bytes_each: f64,
    done_at: Instant,
    /// The count of handled messages when `done_at` was last set.
    done_seen: u64,
}

impl Pace {
    pub(crate) fn new(start: usize, bytes_max: usize) -> Self {
        let now = Instant::now();
        Pace {
            bytes_max,
            goal: start.clamp(1, CLAIM_MAX).into(),
            done: 0.into(),
            inner: Mutex::new(Inner {
                looked_at: now,
                done_then: 0,
                rate: None,
                bytes_each: 0.0,
                done_at: now,
                done_seen: 0,
            }),
        }
    }

    /// Records that messages were handled.
    pub(crate) fn done(&self, messages: usize) {
        self.done.fetch_add(messages as u64, std::sync::atomic::Ordering::Relaxed);
    }

    /// Records the size of messages.
    pub(crate) fn saw(&self, messages: usize, bytes: usize) {
        if messages > 0 {
            let mut inner = self.inner.lock().expect("no panic while held");
            let each = bytes as f64 / messages as f64;
            // Rises fast and falls slowly, to protect memory.
            inner.bytes_each =
                if each > inner.bytes_each { each } else { 0.9 * inner.bytes_each + 0.1 * each };
        }
    }

    /// Whether the buffer is low enough to claim.
    pub(crate) fn is_low(&self, buffered: usize) -> bool {
        buffered * 2 <= self.goal.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// How much to claim, given what is buffered and how many workers are free, each taking `unit` messages at a time.
    pub(crate) fn want(&self, buffered: usize, free: usize, unit: usize) -> Option<usize> {
        let goal = self.update_goal(buffered, free, unit);
        (buffered * 2 <= goal).then(|| (goal - buffered).clamp(1, CLAIM_MAX))
    }

    fn update_goal(&self, buffered: usize, free: usize, unit: usize) -> usize {
        use std::sync::atomic::Ordering::Relaxed;
        let mut inner = self.inner.lock().expect("no panic while held");
        let (now, done) = (Instant::now(), self.done.load(Relaxed));
        inner.note(done);
        let elapsed = now - inner.looked_at;
        let mut goal = self.goal.load(Relaxed);
        if elapsed >= MEASURE_EVERY {
            let handled = (done - inner.done_then) as f64;
            let lately = handled / elapsed.as_secs_f64();
            // Idle time does not show the handlers' speed.
            if handled > 0.0 || free == 0 {
                inner.rate = Some(inner.rate.map_or(lately, |rate| 0.5 * rate + 0.5 * lately));
            }
            inner.looked_at = now;
            inner.done_then = done;
            if let Some(rate) = inner.rate {
                let steady = (rate * AHEAD.as_secs_f64()) as usize;
                // An empty buffer means that the handlers could do more than the measured rate.
                goal =
                    if buffered == 0 && handled > 0.0 { steady.max(goal.saturating_mul(2)) } else { steady };
            }
        }
        let by_bytes = if inner.bytes_each > 0.0 {
            // Half of it: estimates are inexact, and what does not fit has to be released.
            (self.bytes_max as f64 / 2.0 / inner.bytes_each) as usize
        } else {
            CLAIM_MAX
        };
        // A free worker gets something, however slow the others are.
        let goal = goal.max(free.saturating_mul(unit)).min(by_bytes).clamp(1, CLAIM_MAX * 2);
        self.goal.store(goal, Relaxed);
        goal
    }

    /// How long no message has been finished.
    pub(crate) fn idle_for(&self) -> Duration {
        let mut inner = self.inner.lock().expect("no panic while held");
        let done = self.done.load(std::sync::atomic::Ordering::Relaxed);
        inner.note(done);
        inner.done_at.elapsed()
    }
}

impl Inner {
    fn note(&mut self, done: u64) {
        if done > self.done_seen {
            self.done_seen = done;
            self.done_at = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_handlers_hold_next_to_nothing_back() {
        let pace = Pace::new(500, usize::MAX);
        assert_eq!(pace.want(0, 8, 1), Some(500), "nothing is measured yet");
        for _ in 0..20 {
            tokio::time::advance(Duration::from_secs(1)).await;
            pace.done(1);
            pace.want(8, 0, 1);
        }
        assert_eq!(pace.want(0, 0, 1), Some(1));
        assert_eq!(pace.want(0, 3, 1), Some(3), "a free worker gets something");
    }

    #[tokio::test(start_paused = true)]
    async fn fast_handlers_are_kept_fed_and_memory_bounds_it() {
        let pace = Pace::new(100, 1_000_000);
        let mut want = 0;
        for _ in 0..20 {
            want = pace.want(0, 8, 1).unwrap();
            pace.done(want);
            tokio::time::advance(Duration::from_millis(60)).await;
        }
        assert_eq!(want, CLAIM_MAX);
        pace.saw(10, 10 * 1_000);
        assert_eq!(pace.want(0, 8, 1), Some(500), "half a million bytes of a thousand each");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_buffer_claims_nothing() {
        let pace = Pace::new(100, usize::MAX);
        assert_eq!(pace.want(51, 0, 1), None);
        assert_eq!(pace.want(50, 0, 1), Some(50));
    }
}
