//! Counters and timings per topic and per group: for exporters through the `metrics` facade, and for `health()`.
//!
//! Handles are resolved once, when a producer or consumer is made, so that a record costs no lookup. An exporter has to
//! be installed before: without one the facade returns handles that do nothing.

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

/// The metrics of one open store: those of each topic and group are made once and shared.
#[derive(Debug)]
pub(crate) struct Registry {
    window: Duration,
    topics: Mutex<BTreeMap<TopicName, Arc<TopicMetrics>>>,
    groups: Mutex<BTreeMap<(TopicName, GroupName), Arc<GroupMetrics>>>,
}

impl Registry {
    /// A registry whose rates and percentiles cover this window.
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

    /// Metrics of a group for an owner that sends heartbeats under a name of its own. Exporters add them to the group's
    /// others.
    pub(crate) fn group_apart(&self, topic: &TopicName, group: &GroupName) -> Arc<GroupMetrics> {
        GroupMetrics::new(topic, group, self.window)
    }
}

impl Default for Registry {
    fn default() -> Self {
        Registry::new(WINDOW_DEFAULT)
    }
}

/// A counter with a rate.
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

    /// Fetches of messages that a replica answered, and those that the primary answered although there is a replica.
    #[cfg(feature = "postgres")]
    pub(crate) fn replica_fetches(window: Duration) -> [Self; 2] {
        metrics::describe_counter!(
            REPLICA_FETCHES,
            Unit::Count,
            "Fetches of messages by the server that answered"
        );
        ["replica", "primary"]
            .map(|server| Tally::new(metrics::counter!(REPLICA_FETCHES, "server" => server), window))
    }

    /// Adds `by`.
    pub(crate) fn add(&self, by: u64) {
        if by == 0 {
            return;
        }
        self.counter.increment(by);
        self.total.fetch_add(by, Ordering::Relaxed);
        self.rate.add(by, now_ms());
    }

    /// The total so far.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    fn per_second(&self, now_ms: u64) -> f64 {
        self.rate.per_second(now_ms)
    }
}

/// A timing.
#[derive(Debug)]
pub(crate) struct Timing {
    histogram: Histogram,
    window: DurationWindow,
}

impl Timing {
    fn new(histogram: Histogram, window: Duration) -> Self {
        Timing { histogram, window: DurationWindow::new(window, now_ms()) }
    }

    /// Records a duration.
    pub(crate) fn record(&self, took: Duration) {
        self.histogram.record(took.as_secs_f64());
        self.window.record(took, now_ms());
    }
}

/// A gauge.
#[derive(Debug)]
pub(crate) struct Level {
    gauge: Gauge,
    value: AtomicU64,
}

/// A gauge that was never set: no lag is that large.
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

/// The metrics of a producer.
#[derive(Debug)]
pub(crate) struct TopicMetrics {
    topic: TopicName,
    /// Messages published, without duplicates.
    pub(crate) published: Tally,
    /// Messages published in transactions of the program's own, whether or not those committed; without duplicates.
    pub(crate) published_in_transaction: Tally,
    /// Messages the store refused or failed to store.
    pub(crate) publish_errors: Tally,
    /// Publishes in the store, one statement each.
    pub(crate) publish_seconds: Timing,
    /// The last errors.
    pub(crate) errors: RecentErrors,
    refusals: Refusals,
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
            published_in_transaction: tally(PUBLISHED_IN_TRANSACTION),
            // Exported by kind.
            publish_errors: Tally::new(Counter::noop(), window),
            publish_seconds: Timing::new(
                metrics::histogram!(PUBLISH_SECONDS, std::slice::from_ref(&label)),
                window,
            ),
            errors: RecentErrors::default(),
            refusals: Refusals::new(topic),
            failing: AtomicBool::new(false),
        })
    }

    /// Counts a successful publish of this many new messages.
    pub(crate) fn succeeded(&self, messages: usize) {
        self.published.add(messages as u64);
        self.failing.store(false, Ordering::Relaxed);
    }

    /// Counts a publish of this many new messages in a transaction that may still roll back.
    pub(crate) fn succeeded_in_transaction(&self, messages: usize) {
        self.published_in_transaction.add(messages as u64);
        self.failing.store(false, Ordering::Relaxed);
    }

    /// Counts a refused or failed publish of this many messages, and logs it now and then.
    pub(crate) fn failed(&self, messages: usize, error: &Error) {
        self.publish_errors.add(messages as u64);
        self.errors.record_error(error, format!("publish of {messages} to topic {}", self.topic));
        self.refusals.add(messages, error);
        self.failing.store(true, Ordering::Relaxed);
    }

    /// The current figures.
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
                published_in_transaction: self.published_in_transaction.total(),
                publish_errors: self.publish_errors.total(),
                ..Totals::default()
            },
            last_errors: self.errors.newest_first(),
        }
    }
}

/// The metrics of a group's consumer in this process.
#[derive(Debug)]
pub(crate) struct GroupMetrics {
    topic: TopicName,
    group: GroupName,
    /// Messages handed to handlers.
    pub(crate) delivered: Tally,
    /// Messages done.
    pub(crate) acked: Tally,
    /// Messages to be retried.
    pub(crate) retried: Tally,
    /// Messages made dead letters.
    pub(crate) buried: Tally,
    /// Messages filtered out.
    pub(crate) filtered: Tally,
    /// Messages skipped by a handler.
    pub(crate) skipped: Tally,
    /// Messages skipped because they had expired.
    pub(crate) expired: Tally,
    /// Leases that another owner held when they were settled or extended.
    pub(crate) lease_lost: Tally,
    /// Messages taken over from an owner that crashed.
    pub(crate) reassigned: Tally,
    /// Payloads that could not be decoded.
    pub(crate) decode_failed: Tally,
    /// Handlers that panicked.
    pub(crate) panicked: Tally,
    /// Calls of handlers that exceeded their timeout.
    pub(crate) timed_out: Tally,
    in_flight: Level,
    /// Messages between the group's position and the head of the topic.
    pub(crate) lag: Level,
    /// Calls of handlers.
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
            expired: tally("headwater_expired_total"),
            lease_lost: tally("headwater_lease_lost_total"),
            reassigned: tally("headwater_reassigned_total"),
            decode_failed: tally("headwater_decode_failed_total"),
            panicked: tally("headwater_panicked_total"),
            timed_out: tally("headwater_timed_out_total"),
            in_flight: Level::new(metrics::gauge!(IN_FLIGHT, &labels), 0),
            lag: Level::new(metrics::gauge!(LAG, &labels), UNKNOWN),
            handle_seconds: timing("headwater_handle_seconds"),
            claim_seconds: timing("headwater_claim_seconds"),
            fetch_seconds: timing("headwater_fetch_seconds"),
            settle_seconds: timing("headwater_settle_seconds"),
            errors: RecentErrors::default(),
        })
    }

    /// Counts messages as in flight until the result is dropped, also by a panic or a cancelled task.
    pub(crate) fn hold(self: &Arc<Self>, messages: u64) -> InFlight {
        self.in_flight.add(messages);
        InFlight { metrics: Arc::clone(self), messages }
    }

    /// The current figures.
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

    /// The counts that heartbeats report, so far.
    pub(crate) fn counted(&self) -> Counted {
        Counted {
            processed: self.acked.total(),
            failed: self.retried.total() + self.buried.total(),
            filtered: self.filtered.total(),
        }
    }

    /// What a heartbeat reports of the group in this process, given the counts reported before.
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
            expired: self.expired.total(),
            lease_lost: self.lease_lost.total(),
            reassigned: self.reassigned.total(),
            decode_failed: self.decode_failed.total(),
            panicked: self.panicked.total(),
            timed_out: self.timed_out.total(),
            ..Totals::default()
        }
    }
}

/// Counts of a group that heartbeats report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) processed: u64,
    pub(crate) failed: u64,
    pub(crate) filtered: u64,
}

/// Messages that handlers hold; dropping it counts them out.
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
const PUBLISHED_IN_TRANSACTION: &str = "headwater_published_in_transaction_total";
const PUBLISH_ERRORS: &str = "headwater_publish_errors_total";
const PUBLISH_SECONDS: &str = "headwater_publish_seconds";
#[cfg(feature = "postgres")]
const REPLICA_FETCHES: &str = "headwater_replica_fetches_total";
const IN_FLIGHT: &str = "headwater_in_flight";
const LAG: &str = "headwater_lag";

/// The descriptions of the series for exporters.
const COUNTERS: [(&str, &str); 15] = [
    (PUBLISHED, "Messages published, without duplicates"),
    (
        PUBLISHED_IN_TRANSACTION,
        "Messages published in transactions of the program's own, also in those that rolled back later",
    ),
    (PUBLISH_ERRORS, "Messages that were refused or not stored, by the kind of the error"),
    ("headwater_delivered_total", "Messages handed to handlers"),
    ("headwater_acked_total", "Messages done"),
    ("headwater_retried_total", "Messages to be retried"),
    ("headwater_buried_total", "Messages made dead letters"),
    ("headwater_filtered_total", "Messages filtered out"),
    ("headwater_skipped_total", "Messages skipped by a handler"),
    ("headwater_expired_total", "Messages skipped because they had expired"),
    ("headwater_lease_lost_total", "Leases that another owner held when they were settled or extended"),
    ("headwater_reassigned_total", "Messages taken over from an owner that crashed"),
    ("headwater_decode_failed_total", "Payloads that could not be decoded"),
    ("headwater_panicked_total", "Handlers that panicked"),
    ("headwater_timed_out_total", "Calls of handlers that exceeded their timeout"),
];
const HISTOGRAMS: [(&str, &str); 5] = [
    (PUBLISH_SECONDS, "Time of a publish in the store, of one message or many"),
    ("headwater_handle_seconds", "Time of a handler's call"),
    ("headwater_claim_seconds", "Time of a claim in the store"),
    ("headwater_fetch_seconds", "Time of a fetch from the store"),
    ("headwater_settle_seconds", "Time of a settlement in the store"),
];

/// Repeated for each topic and group: a single call per process would be lost if it came before the exporter.
fn describe() {
    for (name, text) in COUNTERS {
        metrics::describe_counter!(name, Unit::Count, text);
    }
    for (name, text) in HISTOGRAMS {
        metrics::describe_histogram!(name, Unit::Seconds, text);
    }
    metrics::describe_gauge!(IN_FLIGHT, Unit::Count, "Messages handed to handlers and not settled");
    metrics::describe_gauge!(
        LAG,
        Unit::Count,
        "Messages between a group's position and the head of its topic"
    );
}

mod jobs;
mod refusals;
mod survey;
#[cfg(test)]
mod tests;

pub(crate) use jobs::JobMetrics;
use refusals::Refusals;
pub(crate) use survey::SurveyMetrics;
