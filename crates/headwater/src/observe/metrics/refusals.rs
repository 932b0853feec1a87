//! Publishes that were refused or failed: counted by kind, and logged at most once a minute for each kind.
//!
//! The caller gets every error; the log is for the operator, who must see that a topic refuses messages although a
//! program ignores the errors, and must not lose the other lines to a million of these.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::Counter;
use tokio::time::Instant;

use super::PUBLISH_ERRORS;
use crate::error::{Error, ErrorKind};
use crate::name::TopicName;
use crate::observe::errors::excerpt;

/// How long a kind stays silent after a line.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// The refused and failed publishes of one topic.
#[derive(Debug)]
pub(super) struct Refusals {
    topic: TopicName,
    kinds: Mutex<HashMap<ErrorKind, OfKind>>,
}

#[derive(Debug)]
struct OfKind {
    counter: Counter,
    logged_at: Option<Instant>,
    /// Calls since then that were not logged.
    suppressed: u64,
}

impl Refusals {
    pub(super) fn new(topic: &TopicName) -> Self {
        Refusals { topic: topic.clone(), kinds: Mutex::default() }
    }

    /// Counts a call that was refused or failed, and logs it if its kind was silent for long enough.
    pub(super) fn add(&self, messages: usize, error: &Error) {
        let Some(suppressed) = self.count(messages, error.kind()) else { return };
        let (topic, kind) = (&self.topic, error.kind());
        let error = error.to_string();
        tracing::warn!(%topic, ?kind, messages, suppressed, error = excerpt(&error), "publish refused");
    }

    /// Counts; returns how many calls were suppressed before, if this one is to be logged.
    fn count(&self, messages: usize, kind: ErrorKind) -> Option<u64> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let of_kind = kinds.entry(kind).or_insert_with(|| {
            let labels = [("topic", self.topic.as_str().to_owned()), ("kind", format!("{kind:?}"))];
            let counter = metrics::counter!(PUBLISH_ERRORS, &labels);
            OfKind { counter, logged_at: None, suppressed: 0 }
        });
        of_kind.counter.increment(messages as u64);
        if of_kind.logged_at.is_some_and(|at| at.elapsed() < LOGGED_EVERY) {
            of_kind.suppressed += 1;
            return None;
        }
        of_kind.logged_at = Some(Instant::now());
        Some(std::mem::take(&mut of_kind.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_logged_once_a_minute_with_what_was_suppressed() {
        let refusals = Refusals::new(&TopicName::new("orders").unwrap());
        let count = |kind| refusals.count(1, kind);
        assert_eq!(count(ErrorKind::NoSubscriptions), Some(0));
        assert_eq!(count(ErrorKind::NoSubscriptions), None);
        assert_eq!(count(ErrorKind::PayloadTooLarge), Some(0), "each kind has its own minute");
        tokio::time::advance(LOGGED_EVERY - Duration::from_millis(1)).await;
        assert_eq!(count(ErrorKind::NoSubscriptions), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(count(ErrorKind::NoSubscriptions), Some(2));
        assert_eq!(count(ErrorKind::NoSubscriptions), None);
    }
}
