//! Batches known to be done: saves reading them again. It is about speed only; its errors are DEBUG and mean "not done".
//!
//! A batch is marked after its commit **and** its ack, never before. The ack is stored after the handler call has returned, and by the
//! topic, so it is observed: the group's progress says up to which offset everything is settled. A batch that was committed here waits until
//! its offset is covered by that, or until the reading was stopped, which returns once all outcomes are stored.
//!
//! Only a batch whose last tick is committed gets here, so a half flushed one is never skipped. A crash before the mark costs a repeat that
//! changes nothing. If another instance had taken the message over because a lease was lost, the mark is still right: the commit was
//! durable before.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::resource::{IdempotencyTracker, Reading};

/// How often the group's progress is read while batches wait for their mark.
const PROGRESS_POLL: Duration = Duration::from_secs(1);
/// Batches that wait at most: an old message that fails again and again holds the progress back.
const WAITING_MAX: usize = 10_000;
/// How long a shutdown spends on marks.
const LAST_MARKS: Duration = Duration::from_secs(2);

/// The idempotency component of one run and group.
pub struct Idempotency {
    tracker: Arc<dyn IdempotencyTracker>,
    group: String,
    /// Committed, and perhaps not acked yet.
    waiting: Mutex<VecDeque<(i64, String)>>,
}

impl Idempotency {
    /// Marks under the name of a group. Refused if that is blank.
    pub fn new(tracker: Arc<dyn IdempotencyTracker>, group: &str) -> Result<Self> {
        if group.trim().is_empty() {
            return Err(Error::invalid("idempotency: the group is blank"));
        }
        Ok(Idempotency { tracker, group: group.to_owned(), waiting: Mutex::default() })
    }

    /// Creates what is missing.
    pub(super) async fn prepare(&self) {
        if let Err(error) = self.tracker.create_schema().await {
            tracing::debug!(group = self.group, %error, "idempotency table not created");
        }
    }

    /// Whether the batch was marked.
    pub(super) async fn is_done(&self, batch_id: &str) -> bool {
        self.tracker.is_done(&self.group, batch_id).await.unwrap_or_else(|error| {
            tracing::debug!(group = self.group, batch_id, %error, "idempotency table not read");
            false
        })
    }

    /// The batch is committed; it is marked once it is acked.
    pub(super) fn committed(&self, offset: i64, batch_id: &str) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() == WAITING_MAX {
            waiting.pop_front();
        }
        waiting.push_back((offset, batch_id.to_owned()));
    }

    /// Marks batches as they are acked; does not return.
    pub(super) async fn run(&self, reading: &dyn Reading) {
        loop {
            tokio::time::sleep(PROGRESS_POLL).await;
            if self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                continue;
            }
            match reading.settled_up_to().await {
                Ok(offset) => self.mark(offset).await,
                Err(error) => tracing::debug!(group = self.group, %error, "progress of the group not read"),
            }
        }
    }

    /// Marks the rest, after the reading was stopped.
    pub(super) async fn finish(&self) {
        if tokio::time::timeout(LAST_MARKS, self.mark(i64::MAX)).await.is_err() {
            tracing::debug!(group = self.group, "batches not marked in time");
        }
    }

    async fn mark(&self, settled_up_to: i64) {
        let acked: VecDeque<(i64, String)> = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let (acked, later) = waiting.drain(..).partition(|(offset, _)| *offset <= settled_up_to);
            *waiting = later;
            acked
        };
        for (_, batch_id) in acked {
            if let Err(error) = self.tracker.mark_done(&self.group, &batch_id).await {
                tracing::debug!(group = self.group, batch_id, %error, "batch not marked");
            }
        }
    }
}
