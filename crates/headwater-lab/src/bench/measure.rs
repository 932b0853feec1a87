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
    /// When the last message was counted, in nanoseconds after the start: idle time after a drained backlog does not count.
    last_ns: Arc<AtomicU64>,
}

impl Run {
    /// Whether there is time left.
    pub(crate) fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// Adds to the count of messages done.
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

#[cfg(test)]
mod tests {
    use super::*;

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
