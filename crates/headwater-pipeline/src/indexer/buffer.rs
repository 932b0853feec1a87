//! The buffer: ticks of several batch files, flushed together, and which of them belong to which batch.
//!
//! A handler call enters, adds the ticks of its batch and waits for their fate. One flusher per run takes ticks from the front, first come,
//! first served, up to `insert_batch_size`, and writes them in one transaction. While it writes, calls fill the buffer again.
//!
//! Why no batch is acked before all its ticks are committed: a call waits on a channel of its own, and the only place that reports
//! `Committed` on it is the flush that took the batch's **last** tick and succeeded. Ticks leave in order and flushes run one after the
//! other, so all earlier ones were taken by this flush or by flushes before it; had one of those failed, it would have removed the batch from
//! the buffer with all its ticks, and no later flush could have taken its last one. A batch that comes again enters as a new call with a
//! new number, so nothing that was left of an earlier delivery can speak for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::Indexer;
use super::room::{Reserved, Room};
use crate::contracts::TickData;
use crate::error::{Error, Result};
use crate::health::{Counter, Health};
use crate::service::{Stop, Stopper};

mod state;
#[cfg(test)]
mod tests;

use state::{Due, Entry, State, Taken};

/// When the buffer is flushed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Ticks in one flush at most; a flush is due as soon as there are so many.
    pub(super) insert_batch_size: usize,
    /// A flush is due so long after the first tick in the buffer came.
    pub(super) flush_timeout: Duration,
    /// Calls at once: a flush is due once all of them wait for one.
    pub(super) files_max: usize,
    /// Bytes of all batches that are read or buffered.
    pub(super) bytes_max: u64,
    /// Ticks of all batches that are read, buffered or being flushed: enough for the next flushes, and no memory for more.
    pub(super) ticks_ahead: u64,
}

/// What became of the ticks of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// All of them are committed.
    Committed,
    /// A flush failed that took some of them; none is in the buffer any more.
    Failed {
        /// Why.
        error: Error,
        /// Whether the flush had ticks of other batches too: then it is not known which batch is to blame.
        was_shared: bool,
    },
}

/// Ticks that wait for a flush.
pub(super) struct Buffer {
    limits: Limits,
    state: Mutex<State>,
    /// Something changed that may make a flush due.
    changed: Notify,
    bytes: Room,
    ticks: Room,
    closing: (Stopper, Stop),
    run_id: String,
    health: Arc<Health>,
}

/// What the flusher does next.
enum Step {
    Flush(Taken),
    /// For a change, or until then.
    Wait(Option<Instant>),
    End,
}

/// A handler call inside the buffer. Dropping it removes what it added.
pub(super) struct Call<'a> {
    buffer: &'a Buffer,
    offset: i64,
    id: u64,
}

impl Buffer {
    pub(super) fn new(run_id: &str, limits: Limits, health: Arc<Health>) -> Self {
        Buffer {
            limits,
            state: Mutex::default(),
            changed: Notify::new(),
            bytes: Room::for_bytes(limits.bytes_max),
            ticks: Room::for_ticks(limits.ticks_ahead),
            closing: Stop::new(),
            run_id: run_id.to_owned(),
            health,
        }
    }

    /// Begins a call for the message at an offset. An earlier call for it has lost its lease: what it added is removed, and it adds nothing
    /// more. `None` once the buffer is closing.
    pub(super) fn enter(&self, offset: i64) -> Option<Call<'_>> {
        let mut state = self.lock();
        if self.closing.1.is_requested() {
            return None;
        }
        let id = state.enter(offset);
        drop(state);
        // It may have taken the last free slot.
        self.changed.notify_one();
        Some(Call { buffer: self, offset, id })
    }

    /// Takes nothing more; [`Buffer::run`] flushes what it has and returns.
    pub(super) fn close(&self) {
        // Under the lock: a call either added its ticks before, and the flusher sees them, or it is refused.
        let state = self.lock();
        self.closing.0.stop();
        drop(state);
        self.changed.notify_one();
    }

    /// Flushes whenever it is due. Returns once the buffer is closed and empty; an error if the final flush failed.
    pub(super) async fn run(&self, indexer: &dyn Indexer) -> Result<()> {
        while let Some(taken) = self.take().await {
            let flushed = self.flush(indexer, taken).await;
            if let Err(error) = flushed
                && self.closing.1.is_requested()
            {
                // What is left would fail the same way, and a shutdown does not wait: it is given back unflushed.
                self.lock().clear();
                return Err(error);
            }
        }
        Ok(())
    }

    /// The ticks of the next flush, once it is due; `None` if the buffer is closed and empty.
    async fn take(&self) -> Option<Taken> {
        loop {
            // A change after the lock was released leaves a permit, so the wait returns at once.
            match self.step() {
                Step::Flush(taken) => return Some(taken),
                Step::End => return None,
                Step::Wait(None) => self.changed.notified().await,
                Step::Wait(Some(until)) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = tokio::time::sleep_until(until) => {}
                },
            }
        }
    }

    fn step(&self) -> Step {
        let mut state = self.lock();
        let is_closing = self.closing.1.is_requested();
        if is_closing && state.is_empty() {
            return Step::End;
        }
        match state.due(&self.limits, self.bytes.is_awaited(), is_closing) {
            Due::At(at) if at > Instant::now() => Step::Wait(Some(at)),
            Due::Never => Step::Wait(None),
            Due::Now | Due::At(_) => Step::Flush(state.take(self.limits.insert_batch_size)),
        }
    }

    /// One transaction, and the fates of the batches that it completes or fails.
    async fn flush(&self, indexer: &dyn Indexer, taken: Taken) -> Result<()> {
        let (begun, count) = (Instant::now(), taken.ticks.len());
        let flushed = indexer.flush_ticks(&taken.ticks).await;
        let took = begun.elapsed();
        match &flushed {
            Ok(()) => {
                let cells = indexer.cells_written(&taken.ticks);
                self.health.record_flush(count as u64, cells, took);
                let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                tracing::debug!(run = self.run_id, count, cells, ms, "ticks flushed");
            }
            Err(error) => {
                let batches = taken.batches();
                self.health.count(Counter::WriteErrors, 1);
                self.health.record_error(error, format_args!("flush of {count} ticks of {batches} batches"));
                tracing::warn!(run = self.run_id, count, batches, code = %error.code(), %error, "flush failed");
            }
        }
        let (ticks, bytes) = {
            let mut state = self.lock();
            state.settle(taken, &flushed);
            (state.ticks(), state.bytes())
        };
        self.health.set_buffer(ticks, bytes);
        flushed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> Call<'a> {
    /// Completes once the buffer is closing.
    pub(super) fn closing(&self) -> Stop {
        self.buffer.closing.1.clone()
    }

    /// Waits for room for a batch.
    pub(super) async fn reserve(&self, ticks: u64, bytes: u64) -> Places<'a> {
        let buffer = self.buffer;
        // Nothing to be done while it waits: so many ticks are several flushes, which are due by their size.
        let ticks = buffer.ticks.reserve(ticks, || {}).await;
        // What is buffered is flushed although more would fit into a flush.
        let bytes = buffer.bytes.reserve(bytes, || buffer.changed.notify_one()).await;
        Places { _ticks: ticks, bytes }
    }

    /// Says that ticks are on their way, until the result is dropped: a flush because all slots are taken waits for them.
    pub(super) fn read(&self) -> Reads<'a> {
        self.buffer.lock().reading += 1;
        Reads(self.buffer)
    }

    /// Adds the ticks of the batch. `alone`: they are flushed at once and with no others. `None` if a later call has taken over or the
    /// buffer is closing; an error of the result means that a later call took over since.
    pub(super) fn add(
        &self,
        ticks: Vec<TickData>,
        bytes: u64,
        alone: bool,
    ) -> Option<(oneshot::Receiver<Fate>, u64)> {
        assert!(!ticks.is_empty(), "a batch without ticks is done, and would never be flushed");
        let (report, fate) = oneshot::channel();
        let mut state = self.buffer.lock();
        if self.buffer.closing.1.is_requested() || !state.is_current(self.offset, self.id) {
            return None;
        }
        let entry = Entry::new(self.id, ticks, bytes, Instant::now(), report);
        state.add(entry, alone);
        let (ticks, bytes) = (state.ticks(), state.bytes());
        drop(state);
        self.buffer.health.set_buffer(ticks, bytes);
        self.buffer.changed.notify_one();
        Some((fate, ticks))
    }
}

/// The room of one batch.
pub(super) struct Places<'a> {
    _ticks: Reserved<'a>,
    bytes: Reserved<'a>,
}

impl Places<'_> {
    /// The batch is decoded and has so many bytes.
    pub(super) fn occupy(&mut self, bytes: u64) {
        self.bytes.grow_to(bytes);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.buffer.lock().leave(self.offset, self.id);
    }
}

/// A batch is being read.
pub(super) struct Reads<'a>(&'a Buffer);

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        self.0.lock().reading -= 1;
        // All calls may wait for a flush now.
        self.0.changed.notify_one();
    }
}
