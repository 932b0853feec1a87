//! Waiting out what is unreachable, busy or full: pauses that double, ended by a stop.

use std::time::Duration;

use crate::error::Result;
use crate::health::Health;
use crate::service::Stop;

const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LONGEST: Duration = Duration::from_secs(10);

/// The pauses between repeats of one call.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Backoff { next: PAUSE_FIRST }
    }

    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE_LONGEST);
        pause
    }

    /// Waits for the next pause; false if a stop is requested.
    pub(crate) async fn wait(&mut self, stop: &mut Stop) -> bool {
        tokio::select! {
            biased;
            () = stop.requested() => false,
            () = tokio::time::sleep(self.pause()) => true,
        }
    }
}

/// Repeats a call that fails for a time, until it succeeds, fails for good, or a stop is requested (`None`).
///
/// A call that has begun is not dropped: it may have opened something.
pub(crate) async fn wait_out<T, F>(
    what: &str,
    health: &Health,
    stop: &mut Stop,
    mut call: impl FnMut() -> F + Send,
) -> Result<Option<T>>
where
    F: Future<Output = Result<T>> + Send,
{
    let mut backoff = Backoff::new();
    loop {
        match call().await {
            Ok(value) => return Ok(Some(value)),
            Err(error) => {
                health.record_error(&error, what);
                if !error.is_transient() {
                    return Err(error);
                }
                tracing::warn!(call = what, %error, "call failed, repeated after a pause");
            }
        }
        if !backoff.wait(stop).await {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::Instant;

    use super::*;
    use crate::error::{Error, ErrorCode};

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = (0..9).map(|_| backoff.pause().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
    }

    #[tokio::test(start_paused = true)]
    async fn transient_errors_are_waited_out_and_permanent_ones_end_it() {
        let (health, (_stopper, mut stop)) = (Health::default(), Stop::new());
        let (calls, begun) = (AtomicU32::new(0), Instant::now());
        let answer = wait_out("count", &health, &mut stop, || async {
            match calls.fetch_add(1, Ordering::Relaxed) {
                0..3 => Err(Error::transient(ErrorCode::ReadFailed, "away")),
                n => Ok(n),
            }
        });
        assert_eq!(answer.await, Ok(Some(3)));
        assert_eq!(begun.elapsed(), Duration::from_millis(700));

        let refused = wait_out("count", &health, &mut stop, || async { Err::<(), _>(Error::invalid("no")) });
        assert_eq!(refused.await, Err(Error::invalid("no")));
        assert_eq!(health.snapshot().error_count, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_wait() {
        let (health, (stopper, mut stop)) = (Health::default(), Stop::new());
        stopper.stop();
        let error = || async { Err::<(), _>(Error::transient(ErrorCode::ReadFailed, "away")) };
        assert_eq!(wait_out("read", &health, &mut stop, error).await, Ok(None));
    }
}
