//! What becomes of a handled message: the pure rule between a handler's word and the store's outcome.

use std::time::Duration;

use crate::lease::Outcome;
use crate::topic::TopicSettings;

/// What a handler says of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Handled.
    Done,
    /// Failed: try again as the topic's policy says.
    Failed(String),
    /// Failed: try again after this delay.
    RetryAfter(Duration, String),
    /// Hopeless: to the dead letters now.
    Bury(String),
    /// Not wanted: done without handling.
    Skip,
    /// Not started: give back, not counted as an attempt.
    Release,
}

/// How often and how fast a message is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How often a message is handed out before it is buried.
    pub max_attempts: u32,
    /// The first delay; it doubles with each attempt.
    pub backoff_initial: Duration,
    /// The longest delay.
    pub backoff_max: Duration,
}

impl From<&TopicSettings> for RetryPolicy {
    fn from(settings: &TopicSettings) -> Self {
        RetryPolicy {
            max_attempts: settings.max_attempts,
            backoff_initial: settings.backoff_initial,
            backoff_max: settings.backoff_max,
        }
    }
}

/// Turns a verdict on hand-out number `attempt` (from 1) into what the store records.
///
/// `jitter` in `0.0..=1.0` spreads the retries of messages that failed together; the delay is between half and all
/// of the exponential back-off.
pub fn decide(verdict: Verdict, attempt: u32, policy: &RetryPolicy, jitter: f64) -> Outcome {
    match verdict {
        Verdict::Done | Verdict::Skip => Outcome::Ack,
        Verdict::Release => Outcome::Release,
        Verdict::Bury(error) => Outcome::Bury { error },
        Verdict::Failed(error) | Verdict::RetryAfter(_, error) if attempt >= policy.max_attempts => {
            Outcome::Bury { error }
        }
        Verdict::RetryAfter(after, error) => Outcome::Retry { after, error, key: None },
        Verdict::Failed(error) => {
            Outcome::Retry { after: backoff(attempt, policy, jitter), error, key: None }
        }
    }
}

fn backoff(attempt: u32, policy: &RetryPolicy, jitter: f64) -> Duration {
    let doublings = attempt.saturating_sub(1).min(31);
    let full = policy.backoff_initial.saturating_mul(1 << doublings).min(policy.backoff_max);
    full.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 3,
        backoff_initial: Duration::from_secs(1),
        backoff_max: Duration::from_secs(3),
    };

    #[test]
    fn failures_back_off_and_are_buried_at_max_attempts() {
        let after = |attempt, jitter| match decide(Verdict::Failed("x".into()), attempt, &POLICY, jitter) {
            Outcome::Retry { after, .. } => after,
            other => panic!("{other:?}"),
        };
        assert_eq!(after(1, 1.0), Duration::from_secs(1));
        assert_eq!(after(1, 0.0), Duration::from_millis(500));
        assert_eq!(after(2, 1.0), Duration::from_secs(2));
        assert_eq!(decide(Verdict::Failed("x".into()), 3, &POLICY, 1.0), Outcome::Bury { error: "x".into() });
        let late = decide(Verdict::RetryAfter(Duration::ZERO, "y".into()), 3, &POLICY, 1.0);
        assert_eq!(late, Outcome::Bury { error: "y".into() });
    }

    #[test]
    fn backoff_never_exceeds_its_maximum_or_overflows() {
        let policy = RetryPolicy { max_attempts: u32::MAX, ..POLICY };
        for attempt in [3, 40, 1_000_000] {
            assert_eq!(backoff(attempt, &policy, 1.0), Duration::from_secs(3));
        }
    }
}
