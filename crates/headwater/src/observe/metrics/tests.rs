//! Tests of the metrics: what an exporter gets, and what `health()` returns without one.

use std::collections::BTreeSet;
use std::sync::Mutex;

use metrics::{
    CounterFn, GaugeFn, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, with_local_recorder,
};

use super::*;

mod documents;
mod survey;

/// An exporter that keeps everything.
#[derive(Default)]
struct Remembered {
    described: Mutex<BTreeSet<String>>,
    values: Arc<Mutex<BTreeMap<String, f64>>>,
}

/// One of its series.
struct Series {
    name: String,
    values: Arc<Mutex<BTreeMap<String, f64>>>,
}

impl Series {
    fn change(&self, change: impl Fn(f64) -> f64) {
        let mut values = self.values.lock().unwrap();
        let value = values.entry(self.name.clone()).or_default();
        *value = change(*value);
    }
}

impl CounterFn for Series {
    fn increment(&self, by: u64) {
        self.change(|value| value + by as f64);
    }

    fn absolute(&self, value: u64) {
        self.change(|_| value as f64);
    }
}

impl GaugeFn for Series {
    fn increment(&self, by: f64) {
        self.change(|value| value + by);
    }

    fn decrement(&self, by: f64) {
        self.change(|value| value - by);
    }

    fn set(&self, to: f64) {
        self.change(|_| to);
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        self.change(|sum| sum + value);
    }
}

impl Remembered {
    fn series(&self, key: &Key) -> Arc<Series> {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Arc::new(Series { name, values: Arc::clone(&self.values) })
    }

    fn value(&self, name: &str) -> f64 {
        *self.values.lock().unwrap().get(name).unwrap_or_else(|| panic!("{name} was never recorded"))
    }
}

impl Recorder for Remembered {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().insert(name.as_str().to_owned());
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().insert(name.as_str().to_owned());
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().insert(name.as_str().to_owned());
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.series(key))
    }
}

fn names() -> (TopicName, GroupName) {
    (TopicName::new("orders").unwrap(), GroupName::new("email").unwrap())
}

#[test]
fn exporter_sees_every_series_with_labels_and_description() {
    let exporter = Remembered::default();
    let (topic, group) = names();
    let registry = Registry::default();
    let (of_topic, of_group) =
        with_local_recorder(&exporter, || (registry.topic(&topic), registry.group(&topic, &group)));
    // Recorded outside: handles are resolved once and stay with their exporter.
    of_topic.published.add(3);
    of_group.acked.add(2);
    of_group.lag.set(40);
    of_group.handle_seconds.record(Duration::from_millis(250));
    let held = of_group.hold(5);
    assert_eq!(exporter.value("headwater_in_flight{topic=orders,group=email}"), 5.0);
    drop(held);
    assert_eq!(exporter.value("headwater_in_flight{topic=orders,group=email}"), 0.0);
    assert_eq!(exporter.value("headwater_published_total{topic=orders}"), 3.0);
    assert_eq!(exporter.value("headwater_acked_total{topic=orders,group=email}"), 2.0);
    assert_eq!(exporter.value("headwater_lag{topic=orders,group=email}"), 40.0);
    assert_eq!(exporter.value("headwater_handle_seconds{topic=orders,group=email}"), 0.25);
    assert_eq!(exporter.described.lock().unwrap().len(), COUNTERS.len() + HISTOGRAMS.len() + 2);
}

#[test]
fn refused_publishes_are_counted_by_kind() {
    let exporter = Remembered::default();
    let (topic, _) = names();
    let metrics = with_local_recorder(&exporter, || {
        let metrics = TopicMetrics::new(&topic, WINDOW_DEFAULT);
        metrics.failed(3, &Error::no_subscriptions("orders"));
        metrics.failed(2, &Error::no_subscriptions("orders"));
        metrics.failed(1, &Error::payload_too_large("orders", 2, 1));
        metrics
    });
    let count = |kind| exporter.value(&format!("headwater_publish_errors_total{{topic=orders,kind={kind}}}"));
    assert_eq!((count("NoSubscriptions"), count("PayloadTooLarge")), (5.0, 1.0));
    assert_eq!(metrics.health("producer").totals.publish_errors, 6);
}

#[test]
fn every_name_follows_the_conventions() {
    for (name, _) in COUNTERS {
        assert!(name.starts_with("headwater_") && name.ends_with("_total"), "{name}");
    }
    for (name, _) in HISTOGRAMS {
        assert!(name.starts_with("headwater_") && name.ends_with("_seconds"), "{name}");
    }
}

#[test]
fn health_has_figures_without_an_exporter() {
    let (topic, group) = names();
    let metrics = GroupMetrics::new(&topic, &group, WINDOW_DEFAULT);
    let before = metrics.health("consumer", HealthState::Starting);
    assert_eq!((before.lag, before.times.handle, before.in_flight), (None, None, 0));

    metrics.delivered.add(10);
    metrics.buried.add(1);
    metrics.lag.set(7);
    metrics.handle_seconds.record(Duration::from_millis(20));
    metrics.errors.record("handler", "no such customer", "offset 3");
    let _held = metrics.hold(4);
    let health = metrics.health("consumer", HealthState::Running);
    assert_eq!((health.totals.delivered, health.totals.buried, health.totals.acked), (10, 1, 0));
    assert!(health.rates.delivered > 0.0 && health.rates.acked == 0.0);
    assert_eq!((health.in_flight, health.lag), (4, Some(7)));
    let handle = health.times.handle.unwrap();
    assert!((0.019..0.021).contains(&handle.p99.as_secs_f64()), "{handle:?}");

    let text = health.to_string();
    assert!(text.starts_with("consumer of topic orders, group email: running\n"), "{text}");
    assert!(text.contains("in flight 4, lag 7") && text.contains("no such customer"), "{text}");
    let json = serde_json::to_value(&health).unwrap();
    assert_eq!(json["state"], "running");
    assert_eq!(json["times"]["handle"]["count"], 1);
    assert!(json["times"]["handle"]["p50_seconds"].is_number());
    assert_eq!(json["last_errors"][0]["code"], "handler");
    assert_eq!(serde_json::from_value::<Health>(json).unwrap().last_errors, health.last_errors);
}

#[test]
fn in_flight_goes_down_when_a_handler_panics() {
    let (topic, group) = names();
    let metrics = GroupMetrics::new(&topic, &group, WINDOW_DEFAULT);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _held = metrics.hold(3);
        std::panic::resume_unwind(Box::new("handler"));
    }));
    assert!(panicked.is_err());
    assert_eq!(metrics.health("consumer", HealthState::Running).in_flight, 0);
}

#[test]
fn workers_of_one_group_share_its_metrics() {
    let (topic, group) = names();
    let registry = Registry::default();
    registry.group(&topic, &group).acked.add(1);
    assert_eq!(registry.group(&topic, &group).acked.total(), 1);
    registry.topic(&topic).published.add(1);
    assert_eq!(registry.topic(&topic).published.total(), 1);
    assert_eq!(registry.group(&topic, &GroupName::new("other").unwrap()).acked.total(), 0);
}
