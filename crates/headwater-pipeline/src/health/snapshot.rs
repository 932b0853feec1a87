//! Figures at one moment, for programs: serde writes them as the control API shows them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use headwater::health::{Durations, RecordedError};
use metrics::Label;
use serde::{Deserialize, Serialize};

use super::counter::{Counter, Counts};
use super::{ERRORS_KEPT, Health, lock};

/// The figures of a service or a binding, or their sum.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthSnapshot {
    /// The run that is served; empty before one is found.
    pub run: String,
    /// The service.
    pub service: String,
    /// The resource; empty for the service itself.
    pub resource: String,
    /// Counts since the start.
    pub counts: Counts,
    /// Cells committed per second, over the window.
    pub cells_per_second: f64,
    /// Batches per second, over the window.
    pub batches_per_second: f64,
    /// How long writes took, over the window; `None` if there was none.
    pub write_latency: Option<Latency>,
    /// Ticks in the buffer.
    pub buffer_ticks: u64,
    /// Bytes in the buffer.
    pub buffer_bytes: u64,
    /// Connections, where there are some.
    pub pool: Option<PoolFigures>,
    /// Errors since the start.
    pub error_count: u64,
    /// The last 100 of them, newest first.
    pub last_errors: Vec<RecordedError>,
}

/// Durations of writes in milliseconds, within 5 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The median.
    pub p50_ms: f64,
    /// The 95th percentile.
    pub p95_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The mean.
    pub avg_ms: f64,
}

/// Connections of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFigures {
    /// In use.
    pub active: u64,
    /// Open and free.
    pub idle: u64,
    /// Open.
    pub total: u64,
    /// Calls that wait for one.
    pub waiting: u64,
}

/// Adds up what bindings have recorded. Names are those of the first.
pub(super) fn sum<'a>(parts: impl IntoIterator<Item = &'a Health>) -> HealthSnapshot {
    let (mut sum, mut writes) = (HealthSnapshot::default(), Durations::default());
    for (nth, part) in parts.into_iter().enumerate() {
        let now_ms = part.now_ms();
        if nth == 0 {
            sum.run.clone_from(&lock(&part.run).0);
            sum.service.clone_from(&part.service);
            sum.resource.clone_from(&part.resource);
        }
        for counter in Counter::ALL {
            *sum.counts.get_mut(counter) += part.get(counter);
        }
        sum.cells_per_second += part.cells.per_second(now_ms);
        sum.batches_per_second += part.batches.per_second(now_ms);
        writes.add(&part.writes, now_ms);
        sum.buffer_ticks += part.buffer_ticks.load(Ordering::Relaxed);
        sum.buffer_bytes += part.buffer_bytes.load(Ordering::Relaxed);
        if let Some(pool) = *lock(&part.pool) {
            // Bindings of one resource share its pool: the largest is the newest reading, a sum would count it twice.
            sum.pool =
                Some(sum.pool.map_or(pool, |other| if other.total > pool.total { other } else { pool }));
        }
        sum.error_count += part.error_count.load(Ordering::Relaxed);
        sum.last_errors.extend(lock(&part.errors).iter().cloned());
    }
    sum.last_errors.sort_by_key(|error| std::cmp::Reverse(error.at));
    sum.last_errors.truncate(ERRORS_KEPT);
    sum.write_latency = latency(&writes);
    sum
}

fn latency(writes: &Durations) -> Option<Latency> {
    let ms = |duration: Duration| duration.as_secs_f64() * 1_000.0;
    let (at, mean) = (writes.percentiles()?, writes.mean()?);
    Some(Latency { p50_ms: ms(at.p50), p95_ms: ms(at.p95), p99_ms: ms(at.p99), avg_ms: ms(mean) })
}

impl HealthSnapshot {
    /// Rates and percentiles as gauges.
    pub(super) fn export(&self, labels: &[Label]) {
        let set = |name: &'static str, value: f64| metrics::gauge!(name, labels.to_vec()).set(value);
        set("headwater_pipeline_cells_per_second", self.cells_per_second);
        set("headwater_pipeline_batches_per_second", self.batches_per_second);
        if let Some(latency) = self.write_latency {
            set("headwater_pipeline_write_latency_p50_ms", latency.p50_ms);
            set("headwater_pipeline_write_latency_p95_ms", latency.p95_ms);
            set("headwater_pipeline_write_latency_p99_ms", latency.p99_ms);
            set("headwater_pipeline_write_latency_avg_ms", latency.avg_ms);
        }
    }
}
