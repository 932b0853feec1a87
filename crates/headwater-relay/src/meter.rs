//! What a relay counts: for its health, and through the `metrics` facade.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use crate::sink::Delivery;

/// Every metric: name, kind and meaning. Each has the labels `relay` and `sink`. `docs/relay.md` lists them.
pub(crate) const METRICS: [(&str, &str, &str); 5] = [
    ("headwater_relay_delivered_total", "counter", "records that the sink confirmed"),
    ("headwater_relay_failed_total", "counter", "deliveries that failed and are repeated"),
    ("headwater_relay_refused_total", "counter", "records that the sink refused for good: dead letters"),
    ("headwater_relay_breaker_open", "gauge", "1 while the sink is unavailable and nothing is sent"),
    ("headwater_relay_deliver_seconds", "histogram", "time of a call of the sink, of one record or many"),
];

pub(crate) struct Meter {
    relay: String,
    delivered: (AtomicU64, Counter),
    failed: (AtomicU64, Counter),
    refused: (AtomicU64, Counter),
    breaker_open: Gauge,
    deliver_seconds: Histogram,
    last_error: Mutex<Option<String>>,
}

/// Totals since the relay was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) delivered: u64,
    pub(crate) failed: u64,
    pub(crate) refused: u64,
    pub(crate) last_error: Option<String>,
}

impl Meter {
    /// Series are resolved once, here.
    pub(crate) fn new(relay: &str, sink: &'static str) -> Self {
        for (name, kind, meaning) in METRICS {
            match kind {
                "counter" => metrics::describe_counter!(name, meaning),
                "gauge" => metrics::describe_gauge!(name, meaning),
                _ => metrics::describe_histogram!(name, meaning),
            }
        }
        let labels = || [("relay", relay.to_owned()), ("sink", sink.to_owned())];
        let counter = |at: usize| (AtomicU64::new(0), metrics::counter!(METRICS[at].0, &labels()));
        let meter = Meter {
            relay: relay.to_owned(),
            delivered: counter(0),
            failed: counter(1),
            refused: counter(2),
            breaker_open: metrics::gauge!(METRICS[3].0, &labels()),
            deliver_seconds: metrics::histogram!(METRICS[4].0, &labels()),
            last_error: Mutex::default(),
        };
        meter.breaker(false);
        meter
    }

    pub(crate) fn relay(&self) -> &str {
        &self.relay
    }

    pub(crate) fn breaker(&self, open: bool) {
        self.breaker_open.set(f64::from(u8::from(open)));
    }

    pub(crate) fn call(&self, took: Duration, deliveries: &[Delivery]) {
        self.deliver_seconds.record(took.as_secs_f64());
        let add = |(total, counter): &(AtomicU64, Counter), count: u64| {
            total.fetch_add(count, Ordering::Relaxed);
            counter.increment(count);
        };
        let (mut delivered, mut failed, mut refused, mut error) = (0, 0, 0, None);
        for delivery in deliveries {
            match delivery {
                Delivery::Delivered => delivered += 1,
                Delivery::Failed { reason, .. } => (failed, error) = (failed + 1, Some(reason)),
                Delivery::Refused { reason } => (refused, error) = (refused + 1, Some(reason)),
                // Counted once it has another result.
                Delivery::Unconfirmed { reason } => error = Some(reason),
            }
        }
        add(&self.delivered, delivered);
        add(&self.failed, failed);
        add(&self.refused, refused);
        if let Some(error) = error {
            *self.last_error.lock().expect("no panic while held") = Some(error.clone());
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let total = |counted: &(AtomicU64, Counter)| counted.0.load(Ordering::Relaxed);
        Counts {
            delivered: total(&self.delivered),
            failed: total(&self.failed),
            refused: total(&self.refused),
            last_error: self.last_error.lock().expect("no panic while held").clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_lists_every_metric() {
        let document = include_str!("../../../docs/relay.md");
        for (name, kind, meaning) in METRICS {
            let row = format!("| `{name}` | {kind} | {meaning} |");
            assert!(document.contains(&row), "docs/relay.md has no row: {row}");
        }
        let listed = document.lines().filter(|line| line.starts_with("| `headwater_relay_")).count();
        assert_eq!(listed, METRICS.len(), "no other is listed");
    }

    #[test]
    fn each_delivery_counts_once() {
        let meter = Meter::new("orders", "test");
        let failed = Delivery::Failed { reason: "busy".into(), retry_after: None };
        let refused = Delivery::Refused { reason: "too large".into() };
        meter.call(Duration::ZERO, &[Delivery::Delivered, failed, Delivery::Delivered, refused]);
        let last_error = Some("too large".to_owned());
        assert_eq!(meter.counts(), Counts { delivered: 2, failed: 1, refused: 1, last_error });
    }
}
