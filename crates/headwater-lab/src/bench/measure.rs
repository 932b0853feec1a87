//! How a figure is taken: rates over a fixed time by several tasks, and rounds that alternate between contenders.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

/// How many messages in how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) messages: u64,
    pub(crate) elapsed: Duration,
}

impl Rate {
    pub(crate) fn per_second(self) -> f64 {
        self.messages as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// A task's view of a timed run: when to stop, and where to count.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    start: Instant,
    until: Instant,
    messages: Arc<AtomicU64>,
    /// When the last message was counted, in nanoseconds after the start: a drained backlog must not count the idle rest.
    last_ns: Arc<AtomicU64>,
}

impl Run {
    /// Whether there is time left.
    pub(crate) fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// Counts messages that are done.
    pub(crate) fn count(&self, messages: usize) {
        self.messages.fetch_add(messages as u64, Ordering::Relaxed);
        let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_ns.fetch_max(elapsed, Ordering::Relaxed);
    }
}

/// Runs `tasks` copies of a loop at once for about `during`, and measures what they counted together.
pub(crate) async fn run_tasks<F, Fut>(tasks: usize, during: Duration, work: F) -> Result<Rate>
where
    F: Fn(usize, Run) -> Fut,
    Fut: Future<Output = Result<()>> + Send + 'static,
{
    let start = Instant::now();
    let run = Run { start, until: start + during, messages: Arc::default(), last_ns: Arc::default() };
    let handles: Vec<_> = (0..tasks).map(|task| tokio::spawn(work(task, run.clone()))).collect();
    for handle in handles {
        handle.await??;
    }
    let elapsed = Duration::from_nanos(run.last_ns.load(Ordering::Relaxed));
    Ok(Rate { messages: run.messages.load(Ordering::Relaxed), elapsed })
}

/// The best figure of several rounds: on a noisy machine it is the one least disturbed.
pub(crate) fn best(rounds: &[f64]) -> f64 {
    rounds.iter().copied().fold(0.0, f64::max)
}

/// The middle of several rounds, for figures where neither end is the undisturbed one.
pub(crate) fn median(rounds: &[f64]) -> f64 {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    (low + high) / 2.0
}

/// The value below which this share of the samples lies.
pub(crate) fn percentile(samples: &mut [Duration], share: f64) -> Duration {
    assert!(!samples.is_empty(), "a percentile needs samples");
    samples.sort_unstable();
    let at = ((samples.len() - 1) as f64 * share).round() as usize;
    samples[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_taken_from_the_sorted_samples() {
        let mut samples: Vec<_> = (1..=101).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut samples, 0.5), Duration::from_millis(51));
        assert_eq!(percentile(&mut samples, 0.99), Duration::from_millis(100));
    }

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_two() {
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), 3.0);
    }

    #[tokio::test]
    async fn the_idle_rest_of_a_run_does_not_count() {
        let rate = run_tasks(2, Duration::from_secs(5), |_, run| async move {
            run.count(10);
            Ok(())
        });
        let rate = rate.await.unwrap();
        assert_eq!(rate.messages, 20);
        assert!(rate.elapsed < Duration::from_secs(1));
    }
}
