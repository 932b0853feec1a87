//! The health of a component: figures of the last minute, totals, and its last errors.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use super::errors::RecordedError;
pub use super::window::{DurationWindow, Durations, RateWindow};

/// The health of one component: a producer, or a group's consumer in this process.
///
/// It needs no exporter and reads nothing from the database. `Display` is for people, serde for programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Health {
    /// The component: `producer` or `consumer`.
    pub component: String,
    /// The topic it works on.
    pub topic: String,
    /// The group it serves, if it serves one.
    pub group: Option<String>,
    /// Its state.
    pub state: HealthState,
    /// The reason for that state, where it is not obvious.
    pub reason: Option<String>,
    /// Rates over the window.
    pub rates: Rates,
    /// Durations over the window.
    pub times: Times,
    /// Messages handed to handlers and not settled.
    pub in_flight: u64,
    /// Messages between the group's position and the head of the topic; `None` where it was not read.
    pub lag: Option<u64>,
    /// Counts since it started.
    pub totals: Totals,
    /// The last errors, newest first.
    pub last_errors: Vec<RecordedError>,
}

/// The state of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HealthState {
    /// Not running yet.
    Starting,
    /// Running, or waiting for messages.
    Running,
    /// Paused by an operator.
    Paused,
    /// Running, but its last operation failed: it retries by itself.
    Failing,
    /// Finishing the messages it holds.
    Stopping,
    /// Stopped.
    Stopped,
}

impl fmt::Display for HealthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HealthState::Starting => "starting",
            HealthState::Running => "running",
            HealthState::Paused => "paused",
            HealthState::Failing => "failing",
            HealthState::Stopping => "stopping",
            HealthState::Stopped => "stopped",
        })
    }
}

/// Messages per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rates {
    /// Published, without duplicates.
    pub published: f64,
    /// Handed to handlers.
    pub delivered: f64,
    /// Done.
    pub acked: f64,
    /// To be retried.
    pub retried: f64,
    /// Made dead letters.
    pub buried: f64,
}

/// Durations; `None` where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Times {
    /// A publish in the store: one statement for one or more messages.
    pub publish: Option<Percentiles>,
    /// A call of a handler.
    pub handle: Option<Percentiles>,
    /// A claim in the store.
    pub claim: Option<Percentiles>,
    /// A fetch from the store.
    pub fetch: Option<Percentiles>,
    /// A settlement in the store.
    pub settle: Option<Percentiles>,
}

/// Percentiles of the recorded durations, within 5 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// How many were recorded.
    pub count: u64,
    /// The median.
    #[serde(rename = "p50_seconds", with = "seconds")]
    pub p50: Duration,
    /// The 95th percentile.
    #[serde(rename = "p95_seconds", with = "seconds")]
    pub p95: Duration,
    /// The 99th percentile.
    #[serde(rename = "p99_seconds", with = "seconds")]
    pub p99: Duration,
}

/// Counts since the component started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Totals {
    /// Published, without duplicates.
    pub published: u64,
    /// Published in transactions of the program's own, whether or not those committed; not part of `published`.
    pub published_in_transaction: u64,
    /// Not published because the store refused or failed.
    pub publish_errors: u64,
    /// Handed to handlers.
    pub delivered: u64,
    /// Done.
    pub acked: u64,
    /// To be retried.
    pub retried: u64,
    /// Made dead letters.
    pub buried: u64,
    /// Filtered out.
    pub filtered: u64,
    /// Skipped by a handler.
    pub skipped: u64,
    /// Skipped because they had expired; also acked.
    pub expired: u64,
    /// Leases that another owner held by the time they were settled.
    pub lease_lost: u64,
    /// Messages taken over from an owner that crashed.
    pub reassigned: u64,
    /// Payloads that could not be decoded.
    pub decode_failed: u64,
    /// Handlers that panicked.
    pub panicked: u64,
    /// Calls of handlers that exceeded their timeout.
    pub timed_out: u64,
}

impl Health {
    /// The same figures of a component that has stopped.
    pub(crate) fn stopped(self, reason: impl Into<String>) -> Self {
        Health { state: HealthState::Stopped, reason: Some(reason.into()), ..self }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of topic {}", self.component, self.topic)?;
        if let Some(group) = &self.group {
            write!(f, ", group {group}")?;
        }
        match &self.reason {
            Some(reason) => writeln!(f, ": {}, {reason}", self.state)?,
            None => writeln!(f, ": {}", self.state)?,
        }
        let (rates, totals, times) = (&self.rates, &self.totals, &self.times);
        if self.group.is_some() {
            let lag = self.lag.map_or_else(|| "unknown".to_owned(), |lag| lag.to_string());
            writeln!(f, "  in flight {}, lag {lag}", self.in_flight)?;
            for (name, rate, total) in [
                ("delivered", rates.delivered, totals.delivered),
                ("acked", rates.acked, totals.acked),
                ("retried", rates.retried, totals.retried),
                ("buried", rates.buried, totals.buried),
            ] {
                writeln!(f, "  {name} {rate:.1}/s, {total} in total")?;
            }
        } else {
            let (rate, total, errors) = (rates.published, totals.published, totals.publish_errors);
            writeln!(f, "  published {rate:.1}/s, {total} in total, {errors} failed")?;
            if totals.published_in_transaction > 0 {
                writeln!(
                    f,
                    "  {} more in transactions of the program's own",
                    totals.published_in_transaction
                )?;
            }
        }
        for (name, times) in [
            ("publish", times.publish),
            ("handle", times.handle),
            ("claim", times.claim),
            ("fetch", times.fetch),
            ("settle", times.settle),
        ] {
            if let Some(Percentiles { p50, p95, p99, .. }) = times {
                writeln!(f, "  {name} p50 {p50:.1?}, p95 {p95:.1?}, p99 {p99:.1?}")?;
            }
        }
        self.last_errors.iter().take(ERRORS_SHOWN).try_for_each(|error| writeln!(f, "  {error}"))?;
        match self.last_errors.len().checked_sub(ERRORS_SHOWN) {
            None | Some(0) => Ok(()),
            Some(more) => writeln!(f, "  and {more} earlier errors"),
        }
    }
}

/// How many errors the text shows; serde has all.
const ERRORS_SHOWN: usize = 5;

/// Durations in seconds, as Prometheus and people expect them.
mod seconds {
    use std::time::Duration;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
