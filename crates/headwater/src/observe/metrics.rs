//! What is counted and timed, per topic and per group: for exporters through the `metrics` facade, and for `health()`.
//!
//! Handles are looked up once, when a producer or consumer is made, so a record costs no look-up. An exporter has to
//! be installed before: the facade gives handles that do nothing while there is none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Unit};

use super::errors::RecentErrors;
use super::health::{Health, HealthState, Rates, Times, Totals};
use super::window::{DurationWindow, RateWindow, WINDOW_DEFAULT, now_ms};
use crate::error::Error;
use crate::name::{GroupName, TopicName};
use crate::subscription::Activity;

/// The metrics of one open store: each topic's and each group's are made once and shared by all who work on it.
#[derive(Debug)]
pub(crate) struct Registry {
    window: Duration,
    topics: Mutex<BTreeMap<TopicName, Arc<TopicMetrics>>>,
    groups: Mutex<BTreeMap<(TopicName, GroupName), Arc<GroupMetrics>>>,
}

impl Registry {
    /// A registry whose rates and percentiles look back this far.
    pub(crate) fn new(window: Duration) -> Self {
        Registry { window, topics: Mutex::default(), groups: Mutex::default() }
    }

    /// The topic's metrics.
    pub(crate) fn topic(&self, topic: &TopicName) -> Arc<TopicMetrics> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(metrics) = topics.get(topic) {
            return Arc::clone(metrics);
        }
        let metrics = TopicMetrics::new(topic, self.window);
        topics.insert(topic.clone(), Arc::clone(&metrics));
        metrics
    }

    /// The group's metrics.
    pub(crate) fn group(&self, topic: &TopicName, group: &GroupName) -> Arc<GroupMetrics> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || GroupMetrics::new(topic, group, self.window);
        Arc::clone(groups.entry((topic.clone(), group.clone())).or_insert_with(make))
    }

    /// Metrics of a group for one who tells of itself under a name of its own. Exporters see them with the others.
    pub(crate) fn group_apart(&self, topic: &TopicName, group: &GroupName) -> Arc<GroupMetrics> {
        GroupMetrics::new(topic, group, self.window)
    }
}

impl Default for Registry {
    fn default() -> Self {
        Registry::new(WINDOW_DEFAULT)
    }
}

/// Something counted.
#[derive(Debug)]
pub(crate) struct Tally {
    counter: Counter,
    total: AtomicU64,
    rate: RateWindow,
}

impl Tally {
    fn new(counter: Counter, window: Duration) -> Self {
        Tally { counter, total: AtomicU64::new(0), rate: RateWindow::new(window, now_ms()) }
    }

    /// Counts `by` more.
    pub(crate) fn add(&self, by: u64) {
        if by == 0 {
            return;
        }
        self.counter.increment(by);
        self.total.fetch_add(by, Ordering::Relaxed);
        self.rate.add(by, now_ms());
    }

    /// How many so far.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    fn per_second(&self, now_ms: u64) -> f64 {
        self.rate.per_second(now_ms)
    }
}

/// Something timed.
#[derive(Debug)]
pub(crate) struct Timing {
    histogram: Histogram,
    window: DurationWindow,
}

impl Timing {
    fn new(histogram: Histogram, window: Duration) -> Self {
        Timing { histogram, window: DurationWindow::new(window, now_ms()) }
    }

    /// Records that it took this long.
    pub(crate) fn record(&self, took: Duration) {
        self.histogram.record(took.as_secs_f64());
        self.window.record(took, now_ms());
    }
}

/// Something that goes up and down.
#[derive(Debug)]
pub(crate) struct Level {
    gauge: Gauge,
    value: AtomicU64,
}

/// A level that was never set: no lag is that large.
const UNKNOWN: u64 = u64::MAX;

impl Level {
    fn new(gauge: Gauge, value: u64) -> Self {
        Level { gauge, value: AtomicU64::new(value) }
    }

    /// Sets it.
    pub(crate) fn set(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
        // Exact up to 2^53 messages.
        self.gauge.set(value as f64);
    }

    fn add(&self, by: u64) {
        self.value.fetch_add(by, Ordering::Relaxed);
        self.gauge.increment(by as f64);
    }

    fn sub(&self, by: u64) {
        self.value.fetch_sub(by, Ordering::Relaxed);
        self.gauge.decrement(by as f64);
    }

    /// The value, once it was set.
    pub(crate) fn get(&self) -> Option<u64> {
        Some(self.value.load(Ordering::Relaxed)).filter(|value| *value != UNKNOWN)
    }
}

/// What a producer counts and times.
#[derive(Debug)]
pub(crate) struct TopicMetrics {
    topic: TopicName,
    /// Messages published, duplicates apart.
    pub(crate) published: Tally,
    /// Messages the store refused or failed to take.
    pub(crate) publish_errors: Tally,
    /// Publishes in the store, one statement each.
    pub(crate) publish_seconds: Timing,
    /// The last errors.
    pub(crate) errors: RecentErrors,
    failing: AtomicBool,
}

impl TopicMetrics {
    pub(crate) fn new(topic: &TopicName, window: Duration) -> Arc<Self> {
        describe();
        let label = ("topic", topic.as_str().to_owned());
        let tally = |name| Tally::new(metrics::counter!(name, std::slice::from_ref(&label)), window);
        Arc::new(TopicMetrics {
            topic: topic.clone(),
            published: tally(PUBLISHED),
            publish_errors: tally(PUBLISH_ERRORS),
            publish_seconds: Timing::new(
                metrics::histogram!(PUBLISH_SECONDS, std::slice::from_ref(&label)),
                window,
            ),
            errors: RecentErrors::default(),
            failing: AtomicBool::new(false),
        })
    }

    /// Counts a publish that came through with this many new messages.
    pub(crate) fn succeeded(&self, messages: usize) {
        self.published.add(messages as u64);
        self.failing.store(false, Ordering::Relaxed);
    }

    /// Counts a publish that failed with this many messages.
    pub(crate) fn failed(&self, messages: usize, error: &Error) {
        self.publish_errors.add(messages as u64);
        self.errors.record_error(error, format!("publish of {messages} to topic {}", self.topic));
        self.failing.store(true, Ordering::Relaxed);
    }

    /// The figures of now.
    pub(crate) fn health(&self, component: &str) -> Health {
        let now_ms = now_ms();
        let failing = self.failing.load(Ordering::Relaxed);
        let state = if failing { HealthState::Failing } else { HealthState::Running };
        Health {
            component: component.to_owned(),
            topic: self.topic.as_str().to_owned(),
            group: None,
            state,
            reason: None,
            rates: Rates { published: self.published.per_second(now_ms), ..Rates::default() },
            times: Times { publish: self.publish_seconds.window.percentiles(now_ms), ..Times::default() },
            in_flight: 0,
            lag: None,
            totals: Totals {
                published: self.published.total(),
                publish_errors: self.publish_errors.total(),
                ..Totals::default()
            },
            last_errors: self.errors.newest_first(),
        }
    }
}

/// What a group's consumer counts and times in this process.
#[derive(Debug)]
pub(crate) struct GroupMetrics {
    topic: TopicName,
    group: GroupName,
    /// Messages handed to handlers.
    pub(crate) delivered: Tally,
    /// Messages done.
    pub(crate) acked: Tally,
    /// Messages put back to be tried again.
    pub(crate) retried: Tally,
    /// Messages given up on.
    pub(crate) buried: Tally,
    /// Messages passed over by a filter.
    pub(crate) filtered: Tally,
    /// Messages passed over by a handler's word.
    pub(crate) skipped: Tally,
    /// Leases that were another's when they were settled or extended.
    pub(crate) lease_lost: Tally,
    /// Messages taken over from a holder that vanished.
    pub(crate) reassigned: Tally,
    /// Payloads that were not what the handler asked for.
    pub(crate) decode_failed: Tally,
    /// Handlers that panicked.
    pub(crate) panicked: Tally,
    in_flight: Level,
    /// Messages between the group's place and the end of the topic.
    pub(crate) lag: Level,
    /// Handlers' calls.
    pub(crate) handle_seconds: Timing,
    /// Claims in the store.
    pub(crate) claim_seconds: Timing,
    /// Fetches from the store.
    pub(crate) fetch_seconds: Timing,
    /// Settlements in the store.
    pub(crate) settle_seconds: Timing,
    /// The last errors.
    pub(crate) errors: RecentErrors,
}

impl GroupMetrics {
    pub(crate) fn new(topic: &TopicName, group: &GroupName, window: Duration) -> Arc<Self> {
        describe();
        let labels = [("topic", topic.as_str().to_owned()), ("group", group.as_str().to_owned())];
        let tally = |name| Tally::new(metrics::counter!(name, &labels), window);
        let timing = |name| Timing::new(metrics::histogram!(name, &labels), window);
        Arc::new(GroupMetrics {
            topic: topic.clone(),
            group: group.clone(),
            delivered: tally("headwater_delivered_total"),
            acked: tally("headwater_acked_total"),
            retried: tally("headwater_retried_total"),
            buried: tally("headwater_buried_total"),
            filtered: tally("headwater_filtered_total"),
            skipped: tally("headwater_skipped_total"),
            lease_lost: tally("headwater_lease_lost_total"),
            reassigned: tally("headwater_reassigned_total"),
            decode_failed: tally("headwater_decode_failed_total"),
            panicked: tally("headwater_panicked_total"),
            in_flight: Level::new(metrics::gauge!(IN_FLIGHT, &labels), 0),
            lag: Level::new(metrics::gauge!(LAG, &labels), UNKNOWN),
            handle_seconds: timing("headwater_handle_seconds"),
            claim_seconds: timing("headwater_claim_seconds"),
            fetch_seconds: timing("headwater_fetch_seconds"),
            settle_seconds: timing("headwater_settle_seconds"),
            errors: RecentErrors::default(),
        })
    }

    /// Counts messages as in flight until the answer is dropped, also by a panic or a cancelled task.
    pub(crate) fn hold(self: &Arc<Self>, messages: u64) -> InFlight {
        self.in_flight.add(messages);
        InFlight { metrics: Arc::clone(self), messages }
    }

    /// The figures of now.
    pub(crate) fn health(&self, component: &str, state: HealthState) -> Health {
        let now_ms = now_ms();
        Health {
            component: component.to_owned(),
            topic: self.topic.as_str().to_owned(),
            group: Some(self.group.as_str().to_owned()),
            state,
            reason: None,
            rates: Rates {
                delivered: self.delivered.per_second(now_ms),
                acked: self.acked.per_second(now_ms),
                retried: self.retried.per_second(now_ms),
                buried: self.buried.per_second(now_ms),
                ..Rates::default()
            },
            times: Times {
                handle: self.handle_seconds.window.percentiles(now_ms),
                claim: self.claim_seconds.window.percentiles(now_ms),
                fetch: self.fetch_seconds.window.percentiles(now_ms),
                settle: self.settle_seconds.window.percentiles(now_ms),
                ..Times::default()
            },
            in_flight: self.in_flight.get().unwrap_or_default(),
            lag: self.lag.get(),
            totals: self.totals(),
            last_errors: self.errors.newest_first(),
        }
    }

    /// What was counted so far of what heartbeats tell.
    pub(crate) fn counted(&self) -> Counted {
        Counted {
            processed: self.acked.total(),
            failed: self.retried.total() + self.buried.total(),
            filtered: self.filtered.total(),
        }
    }

    /// What a heartbeat tells of the group in this process, if it has told so much before.
    pub(crate) fn activity(&self, since: Counted) -> Activity {
        let now_ms = now_ms();
        let (times, mean) = (&self.handle_seconds.window, self.handle_seconds.window.mean(now_ms));
        let counted = self.counted();
        Activity {
            processed: counted.processed.saturating_sub(since.processed),
            failed: counted.failed.saturating_sub(since.failed),
            filtered: counted.filtered.saturating_sub(since.filtered),
            rate: self.acked.per_second(now_ms),
            handling_mean: mean.unwrap_or_default(),
            handling_p95: times.percentiles(now_ms).map_or(Duration::ZERO, |times| times.p95),
        }
    }

    fn totals(&self) -> Totals {
        Totals {
            delivered: self.delivered.total(),
            acked: self.acked.total(),
            retried: self.retried.total(),
            buried: self.buried.total(),
            filtered: self.filtered.total(),
            skipped: self.skipped.total(),
            lease_lost: self.lease_lost.total(),
            reassigned: self.reassigned.total(),
            decode_failed: self.decode_failed.total(),
            panicked: self.panicked.total(),
            ..Totals::default()
        }
    }
}

/// Counts of a group that heartbeats tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) processed: u64,
    pub(crate) failed: u64,
    pub(crate) filtered: u64,
}

/// Messages in a handler's hands; dropped when they are out of them.
#[derive(Debug)]
pub(crate) struct InFlight {
    metrics: Arc<GroupMetrics>,
    messages: u64,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics.in_flight.sub(self.messages);
    }
}

const PUBLISHED: &str = "headwater_published_total";
const PUBLISH_ERRORS: &str = "headwater_publish_errors_total";
const PUBLISH_SECONDS: &str = "headwater_publish_seconds";
const IN_FLIGHT: &str = "headwater_in_flight";
const LAG: &str = "headwater_lag";

/// What the exporter says about each name.
const COUNTERS: [(&str, &str); 12] = [
    (PUBLISHED, "Messages published, duplicates apart"),
    (PUBLISH_ERRORS, "Messages the store refused or failed to take"),
    ("headwater_delivered_total", "Messages handed to handlers"),
    ("headwater_acked_total", "Messages done"),
    ("headwater_retried_total", "Messages put back to be tried again"),
    ("headwater_buried_total", "Messages given up on: dead letters"),
    ("headwater_filtered_total", "Messages passed over by a filter"),
    ("headwater_skipped_total", "Messages passed over by a handler's word"),
    ("headwater_lease_lost_total", "Leases that were another's when they were settled or extended"),
    ("headwater_reassigned_total", "Messages taken over from a holder that vanished"),
    ("headwater_decode_failed_total", "Payloads that were not what the handler asked for"),
    ("headwater_panicked_total", "Handlers that panicked"),
];
const HISTOGRAMS: [(&str, &str); 5] = [
    (PUBLISH_SECONDS, "Time of a publish in the store, of one message or many"),
    ("headwater_handle_seconds", "Time of a handler's call"),
    ("headwater_claim_seconds", "Time of a claim in the store"),
    ("headwater_fetch_seconds", "Time of a fetch from the store"),
    ("headwater_settle_seconds", "Time of a settlement in the store"),
];

/// Said again for each topic and group: once per process would be lost if it came before the exporter.
fn describe() {
    for (name, text) in COUNTERS {
        metrics::describe_counter!(name, Unit::Count, text);
    }
    for (name, text) in HISTOGRAMS {
        metrics::describe_histogram!(name, Unit::Seconds, text);
    }
    metrics::describe_gauge!(IN_FLIGHT, Unit::Count, "Messages handed to handlers and not settled");
    metrics::describe_gauge!(LAG, Unit::Count, "Messages between a group's place and the end of its topic");
}

mod jobs;
#[cfg(test)]
mod tests;

pub(crate) use jobs::JobMetrics;
