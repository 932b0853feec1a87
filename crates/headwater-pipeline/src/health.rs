//! What a service or a binding has done: counters, rates, latencies and its last errors, for programs, the control API and as metrics.
//!
//! Every figure can be read without an exporter ([`Health::snapshot`]) and is passed to the `metrics` facade under
//! `headwater_pipeline_…` with the labels run, service and resource. Recording is O(1).

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headwater::health::{DurationWindow, RateWindow, RecordedError};
use jiff::Timestamp;
use metrics::{Label, SharedString};
use tokio::time::Instant;

use crate::error::Error;

mod counter;
mod snapshot;

pub use counter::{Counter, Counts};
pub use snapshot::{HealthSnapshot, Latency, PoolFigures};

/// How many errors are kept.
pub const ERRORS_KEPT: usize = 100;
/// Longest text of a kept error: a hundred of them must not fill the memory.
const TEXT_BYTES_MAX: usize = 2 * 1024;
/// The width of the windows unless `metrics_window_s` is configured.
pub const WINDOW_DEFAULT: Duration = Duration::from_secs(60);

/// Figures and errors of a service, or of one of its bindings. Recording is O(1).
#[derive(Debug)]
pub struct Health {
    service: String,
    resource: String,
    /// The run that is served now: an indexer that follows runs changes it. With its labels, so that a record makes no text.
    run: Mutex<(String, Vec<Label>)>,
    since: Instant,
    counts: [AtomicU64; Counter::ALL.len()],
    buffer_ticks: AtomicU64,
    buffer_bytes: AtomicU64,
    pool: Mutex<Option<PoolFigures>>,
    cells: RateWindow,
    batches: RateWindow,
    writes: DurationWindow,
    error_count: AtomicU64,
    errors: Mutex<VecDeque<RecordedError>>,
}

impl Default for Health {
    fn default() -> Self {
        Health::new("", "", WINDOW_DEFAULT)
    }
}

impl Health {
    /// Figures of a service, or of what it binds under the name of a resource (empty: the service itself).
    pub fn new(service: &str, resource: &str, window: Duration) -> Self {
        let health = Health {
            service: service.to_owned(),
            resource: resource.to_owned(),
            run: Mutex::default(),
            since: Instant::now(),
            counts: Default::default(),
            buffer_ticks: AtomicU64::new(0),
            buffer_bytes: AtomicU64::new(0),
            pool: Mutex::default(),
            cells: RateWindow::new(window, 0),
            batches: RateWindow::new(window, 0),
            writes: DurationWindow::new(window, 0),
            error_count: AtomicU64::new(0),
            errors: Mutex::default(),
        };
        health.set_run("");
        health
    }

    /// Figures of a service.
    pub fn of_service(service: &str) -> Self {
        Health::new(service, "", WINDOW_DEFAULT)
    }

    /// The run that metrics are labelled with from now on.
    pub fn set_run(&self, run: &str) {
        let label = |name: &'static str, value: &str| Label::new(name, SharedString::from(value.to_owned()));
        let labels =
            vec![label("run", run), label("service", &self.service), label("resource", &self.resource)];
        *lock(&self.run) = (run.to_owned(), labels);
    }

    /// Counts `by` more. Batches and cells also count in their rates.
    pub fn count(&self, counter: Counter, by: u64) {
        self.counts[counter as usize].fetch_add(by, Ordering::Relaxed);
        metrics::counter!(counter.metric(), self.labels()).increment(by);
        match counter {
            Counter::CellsWritten => self.cells.add(by, self.now_ms()),
            Counter::BatchesWritten | Counter::BatchesProcessed => self.batches.add(by, self.now_ms()),
            _ => {}
        }
    }

    /// Records a write of ticks that is durable.
    pub fn record_flush(&self, ticks: u64, cells: u64, took: Duration) {
        self.count(Counter::TicksFlushed, ticks);
        self.count(Counter::CellsWritten, cells);
        self.record_write(took);
    }

    /// Records how long a write took.
    pub fn record_write(&self, took: Duration) {
        self.writes.record(took, self.now_ms());
    }

    /// What is in the buffer now.
    pub fn set_buffer(&self, ticks: u64, bytes: u64) {
        self.buffer_ticks.store(ticks, Ordering::Relaxed);
        self.buffer_bytes.store(bytes, Ordering::Relaxed);
        let labels = self.labels();
        // Exact up to 2^53.
        metrics::gauge!("headwater_pipeline_buffer_ticks", labels.clone()).set(ticks as f64);
        metrics::gauge!("headwater_pipeline_buffer_bytes", labels).set(bytes as f64);
    }

    /// The connections in use now.
    pub fn set_pool(&self, pool: PoolFigures) {
        *lock(&self.pool) = Some(pool);
        let labels = self.labels();
        for (name, value) in [
            ("headwater_pipeline_pool_active", pool.active),
            ("headwater_pipeline_pool_idle", pool.idle),
            ("headwater_pipeline_pool_total", pool.total),
            ("headwater_pipeline_pool_waiting", pool.waiting),
        ] {
            metrics::gauge!(name, labels.clone()).set(value as f64);
        }
    }

    /// Records an error, with what was being done.
    pub fn record_error(&self, error: &Error, context: impl fmt::Display) {
        let recorded = RecordedError {
            code: error.code().as_str().into(),
            message: shortened(error.to_string()),
            context: shortened(context.to_string()),
            at: Timestamp::now(),
        };
        self.error_count.fetch_add(1, Ordering::Relaxed);
        let mut labels = self.labels();
        labels.push(Label::new("code", error.code().as_str()));
        metrics::counter!("headwater_pipeline_errors", labels).increment(1);
        let mut errors = lock(&self.errors);
        if errors.len() == ERRORS_KEPT {
            errors.pop_back();
        }
        errors.push_front(recorded);
    }

    /// One count.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counts[counter as usize].load(Ordering::Relaxed)
    }

    /// All figures as they are now. Rates and percentiles are passed to the `metrics` facade by this call: read it before each export.
    pub fn snapshot(&self) -> HealthSnapshot {
        let snapshot = snapshot::sum([self]);
        snapshot.export(&self.labels());
        snapshot
    }

    /// The sum over bindings of one resource: counts and rates are added, percentiles are those of all writes, errors are the newest of all.
    pub fn sum<'a>(bindings: impl IntoIterator<Item = &'a Health>) -> HealthSnapshot {
        snapshot::sum(bindings)
    }

    fn labels(&self) -> Vec<Label> {
        lock(&self.run).1.clone()
    }

    /// Milliseconds since it was made, by the runtime's clock: tests move it.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Poisoned means that a record was lost, not that the rest is wrong.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shortened(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests;
