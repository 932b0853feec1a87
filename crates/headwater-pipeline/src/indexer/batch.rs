//! The batch loop: one handler call per announced batch, which returns once the batch is committed.
//!
//! A call reads and decodes its file while earlier ticks are being written, adds them to the buffer and waits for their fate. What fails for
//! a time (storage or database unreachable or full) is waited out inside the call and costs no attempt: each repeat starts from zero. What
//! fails for good costs an attempt, and after `batch_attempts` the batch is buried.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::buffer::{Buffer, Call, Fate};
use super::idempotency::Idempotency;
use crate::backoff::Backoff;
use crate::contracts::{BatchInfo, TickData};
use crate::error::{Error, ErrorCode};
use crate::follow::check_run;
use crate::health::{Counter, Health};
use crate::resource::{BatchStorageRead, Delivery, Handler, Verdict};

/// Batches to be flushed alone that are remembered at most. Forgetting them costs another failed flush.
const SUSPECTS_MAX: usize = 10_000;
/// What a tick and an organism need in memory beside their packed cells and numbers.
const TICK_BYTES: u64 = size_of::<TickData>() as u64 + 64;
const ORGANISM_BYTES: u64 = size_of::<crate::contracts::OrganismState>() as u64 + 256;

/// Indexes the batches of one run.
pub(super) struct BatchHandler {
    pub(super) run_id: String,
    pub(super) storage: Arc<dyn BatchStorageRead>,
    pub(super) buffer: Buffer,
    pub(super) idempotency: Option<Idempotency>,
    pub(super) batch_attempts: u32,
    pub(super) health: Arc<Health>,
    /// Batches of a failed flush that had several: it is not known which one is to blame, so each comes back at no cost and is flushed
    /// alone. Otherwise a broken batch would take its neighbours along to the dead letters.
    suspects: Mutex<HashSet<String>>,
}

/// How a try ended.
enum Tried {
    Committed,
    /// The buffer is closing, or a later call has taken over.
    GivenBack,
    Failed {
        error: Error,
        was_shared: bool,
    },
}

impl BatchHandler {
    pub(super) fn new(
        run_id: &str,
        storage: Arc<dyn BatchStorageRead>,
        buffer: Buffer,
        idempotency: Option<Idempotency>,
        batch_attempts: u32,
        health: Arc<Health>,
    ) -> Self {
        let run_id = run_id.to_owned();
        let suspects = Mutex::default();
        BatchHandler { run_id, storage, buffer, idempotency, batch_attempts, health, suspects }
    }

    /// Reads the batch, adds it to the buffer and waits until it is flushed.
    async fn attempt(&self, call: &Call<'_>, info: &BatchInfo, alone: bool) -> Tried {
        let reads = call.read();
        let mut closing = call.closing();
        let (ticks, mut room) = tokio::select! {
            biased;
            () = closing.requested() => return Tried::GivenBack,
            read = async {
                let room = call.reserve(info.tick_count, info.stored_bytes).await;
                (self.read(info).await, room)
            } => match read {
                (Ok(ticks), room) => (ticks, room),
                (Err(error), _) => return Tried::Failed { error, was_shared: false },
            },
        };
        if ticks.is_empty() {
            return Tried::Committed;
        }
        let (count, bytes) = (ticks.len(), memory_of(&ticks));
        room.occupy(bytes);
        let Some((fate, buffer)) = call.add(ticks, bytes, alone) else { return Tried::GivenBack };
        drop(reads);
        tracing::debug!(run = self.run_id, key = info.storage_key, count, buffer, "ticks buffered");
        match fate.await {
            Ok(Fate::Committed) => Tried::Committed,
            Ok(Fate::Failed { error, was_shared }) => Tried::Failed { error, was_shared },
            Err(_) => Tried::GivenBack,
        }
    }

    async fn read(&self, info: &BatchInfo) -> Result<Vec<TickData>, Error> {
        let read = async {
            check_run(&self.run_id, &info.run_id, &format!("batch {}", info.storage_key))?;
            Ok(self.storage.read_batch(info).await?.ticks)
        };
        read.await.inspect_err(|error: &Error| {
            self.health.count(Counter::ReadErrors, 1);
            self.health.record_error(error, format_args!("read of batch {}", info.storage_key));
            let (run, key, code) = (&self.run_id, &info.storage_key, error.code());
            tracing::warn!(run, key, %code, %error, "batch file not read");
        })
    }

    /// Whether the batch is known to be done. An error means that it is not.
    async fn is_known(&self, call: &Call<'_>, info: &BatchInfo) -> bool {
        let Some(idempotency) = &self.idempotency else { return false };
        let mut closing = call.closing();
        tokio::select! {
            biased;
            () = closing.requested() => false,
            known = idempotency.is_done(&info.storage_key) => known,
        }
    }

    fn committed(&self, info: &BatchInfo, delivery: Delivery) -> Verdict {
        self.health.count(Counter::BatchesProcessed, 1);
        self.suspects().remove(&info.storage_key);
        if let Some(idempotency) = &self.idempotency {
            idempotency.committed(delivery.offset, &info.storage_key);
        }
        Verdict::Done
    }

    /// What becomes of a batch that waiting does not help.
    fn given_up(&self, info: &BatchInfo, delivery: Delivery, error: &Error, was_shared: bool) -> Verdict {
        self.health.count(Counter::BatchesFailed, 1);
        if was_shared {
            let mut suspects = self.suspects();
            if suspects.len() >= SUSPECTS_MAX {
                suspects.clear();
            }
            suspects.insert(info.storage_key.clone());
            return Verdict::GiveBack;
        }
        let reason = format!("batch {}: {}: {error}", info.storage_key, error.code());
        if delivery.attempt < self.batch_attempts {
            return Verdict::Retry(reason);
        }
        self.suspects().remove(&info.storage_key);
        self.health.count(Counter::BatchesBuried, 1);
        let (run, key, attempt) = (&self.run_id, &info.storage_key, delivery.attempt);
        tracing::warn!(run, key, attempt, code = %error.code(), %error, "batch buried");
        Verdict::Bury(reason)
    }

    fn suspects(&self) -> MutexGuard<'_, HashSet<String>> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Handler<BatchInfo> for BatchHandler {
    async fn handle(&self, info: BatchInfo, delivery: Delivery) -> Verdict {
        let (run, key, ticks) = (&self.run_id, &info.storage_key, info.tick_count);
        tracing::debug!(run, key, ticks, attempt = delivery.attempt, "batch received");
        let Some(call) = self.buffer.enter(delivery.offset) else { return Verdict::GiveBack };
        if key.trim().is_empty() {
            let error = Error::permanent(ErrorCode::DecodeFailed, "the announcement has no storage key");
            return self.given_up(&info, delivery, &error, false);
        }
        if self.is_known(&call, &info).await {
            self.health.count(Counter::BatchesSkipped, 1);
            tracing::debug!(run, key, "batch skipped");
            return Verdict::Done;
        }
        // After a crash batches come back alone and in halves: waiting for others would only cost the timeout.
        let alone = delivery.attempt > 1 || self.suspects().contains(key);
        let (mut backoff, mut closing) = (Backoff::new(), call.closing());
        loop {
            match self.attempt(&call, &info, alone).await {
                Tried::Committed => return self.committed(&info, delivery),
                Tried::GivenBack => return Verdict::GiveBack,
                Tried::Failed { error, .. } if error.is_transient() => {
                    if !backoff.wait(&mut closing).await {
                        return Verdict::GiveBack;
                    }
                }
                Tried::Failed { error, was_shared } => {
                    return self.given_up(&info, delivery, &error, was_shared);
                }
            }
        }
    }
}

/// About the bytes that ticks occupy; cells are not touched.
fn memory_of(ticks: &[TickData]) -> u64 {
    let of =
        |tick: &TickData| TICK_BYTES + tick.cells.len() as u64 + tick.organisms.len() as u64 * ORGANISM_BYTES;
    ticks.iter().map(of).sum()
}
