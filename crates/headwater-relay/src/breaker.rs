//! The circuit breaker of a relay: once its sink is unavailable nothing is sent until a probe succeeds.
//!
//! No record pays for it: records that were taken are held, without an attempt, and nothing more is taken. Probes are made by
//! [`Sink::check`], which writes nothing, with a back-off that only a delivery resets: a sink that answers probes and refuses
//! deliveries is not asked more and more often.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::courier::AbortOnDrop;
use crate::meter::Meter;
use crate::sink::{Sink, SinkError};

/// The state of the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Records are delivered.
    Closed,
    /// The sink is unavailable, and is probed from time to time.
    Open,
}

/// How fast an unavailable sink is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) initial: Duration,
    pub(crate) longest: Duration,
}

impl Pace {
    /// The pause before probe number `failures`, from 1. `jitter` in `0.0..=1.0` spreads the probes of several processes.
    fn pause(self, failures: u32, jitter: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let full = self.initial.saturating_mul(1 << doublings).min(self.longest);
        full.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
    }
}

/// Why and since when the breaker is open.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    pub(crate) since: Instant,
    pub(crate) error: SinkError,
}

pub(crate) struct Breaker {
    sink: Arc<dyn Sink>,
    meter: Arc<Meter>,
    pace: Pace,
    probe_timeout: Duration,
    state: watch::Sender<State>,
    inner: Mutex<Inner>,
    /// Held by the one task that probes.
    probing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Inner {
    /// Failures since the last delivery.
    failures: u32,
    outage: Option<Outage>,
}

impl Breaker {
    pub(crate) fn new(sink: &Arc<dyn Sink>, meter: &Arc<Meter>, pace: Pace, probe_timeout: Duration) -> Self {
        let (state, _) = watch::channel(State::Closed);
        Breaker {
            sink: Arc::clone(sink),
            meter: Arc::clone(meter),
            pace,
            probe_timeout,
            state,
            inner: Mutex::default(),
            probing: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.state.borrow() == State::Open
    }

    /// Follows the state.
    pub(crate) fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Why it is open.
    pub(crate) fn outage(&self) -> Option<Outage> {
        self.inner.lock().expect("no panic while held").outage.clone()
    }

    /// A delivery was answered: the next outage starts with short pauses again.
    pub(crate) fn answered(&self) {
        self.inner.lock().expect("no panic while held").failures = 0;
    }

    /// Opens it.
    pub(crate) fn trip(&self, error: SinkError) {
        let was_open = {
            let mut inner = self.inner.lock().expect("no panic while held");
            inner.failures = inner.failures.saturating_add(1);
            let since = inner.outage.as_ref().map(|outage| outage.since);
            inner.outage = Some(Outage { since: since.unwrap_or_else(Instant::now), error: error.clone() });
            since.is_some()
        };
        self.state.send_replace(State::Open);
        self.meter.breaker(true);
        if was_open {
            return;
        }
        let (relay, sink) = (self.meter.relay(), self.sink.kind());
        match error {
            SinkError::Unavailable(error) => {
                tracing::warn!(
                    relay,
                    sink,
                    error,
                    "relay breaker opened: the sink is unavailable, nothing is sent until a probe succeeds"
                );
            }
            SinkError::Misconfigured(error) => {
                tracing::error!(
                    relay,
                    sink,
                    error,
                    "relay breaker opened: the sink refuses this relay, correct its configuration"
                );
            }
        }
    }

    /// Waits until it is closed, and probes the sink meanwhile. Several tasks may wait: one of them probes.
    pub(crate) async fn closed(&self) {
        while self.is_open() {
            let _probing = self.probing.lock().await;
            if !self.is_open() {
                return;
            }
            let pause = {
                let inner = self.inner.lock().expect("no panic while held");
                // An operator has to act: asking often helps nothing.
                let slow = matches!(&inner.outage, Some(Outage { error: SinkError::Misconfigured(_), .. }));
                let failures = if slow { u32::MAX } else { inner.failures };
                self.pace.pause(failures, rand::random())
            };
            tokio::time::sleep(pause).await;
            match self.probe().await {
                Ok(()) => self.close(),
                Err(error) => self.trip(error),
            }
        }
    }

    async fn probe(&self) -> Result<(), SinkError> {
        let limit = self.probe_timeout;
        let late = || SinkError::Unavailable(format!("no answer to a probe within {limit:?}"));
        let sink = Arc::clone(&self.sink);
        // In a task of its own: a panic must not end the task that waits here.
        let probe = AbortOnDrop(tokio::spawn(async move { sink.check().await }));
        match tokio::time::timeout(limit, probe.joined()).await {
            Ok(Ok(checked)) => checked,
            Ok(Err(panic)) => Err(SinkError::Unavailable(format!("the sink panicked: {panic}"))),
            Err(_) => Err(late()),
        }
    }

    fn close(&self) {
        let outage = self.inner.lock().expect("no panic while held").outage.take();
        self.state.send_replace(State::Closed);
        self.meter.breaker(false);
        let open_for = outage.map(|outage| outage.since.elapsed()).unwrap_or_default();
        let (relay, sink) = (self.meter.relay(), self.sink.kind());
        tracing::info!(relay, sink, ?open_for, "relay breaker closed: the sink answers again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_never_overflow() {
        let pace = Pace { initial: Duration::from_millis(100), longest: Duration::from_secs(30) };
        assert_eq!(pace.pause(1, 1.0), Duration::from_millis(100));
        assert_eq!(pace.pause(1, 0.0), Duration::from_millis(50));
        assert_eq!(pace.pause(3, 1.0), Duration::from_millis(400));
        for failures in [10, 1_000, u32::MAX] {
            assert_eq!(pace.pause(failures, 1.0), Duration::from_secs(30));
        }
    }
}
