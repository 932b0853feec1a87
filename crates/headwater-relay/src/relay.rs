//! A relay: one source, one sink, and a task of its own, so that a sink that is down slows no other relay.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headwater::consumer::ConsumerBuilder;
use headwater::health::Health;
use headwater::{Error, Headwater, Result, Running};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

mod settings;

pub use settings::RelaySettings;

use crate::breaker::{Breaker, Pace, State};
use crate::courier::Courier;
use crate::meter::Meter;
use crate::sink::{Sink, SinkError};
use crate::source::outbox::OutboxSource;
use crate::source::topic;

/// Where the records of a relay come from.
///
/// ```
/// use headwater_relay::Source;
///
/// assert_eq!(Source::parse("outbox").unwrap(), Source::Outbox);
/// assert_eq!(Source::parse("orders").unwrap(), Source::Topic("orders".into()));
/// assert_eq!(Source::parse("topic:outbox").unwrap(), Source::Topic("outbox".into()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The messages of a topic, through a group of the relay's own.
    Topic(String),
    /// The entries of the [outbox](headwater::outbox).
    Outbox,
}

impl Source {
    /// The source of this name: `outbox`, the name of a topic, or `topic:` and the name of a topic.
    pub fn parse(text: &str) -> Result<Self> {
        let topic = match text.split_once(':') {
            None if text == "outbox" => return Ok(Source::Outbox),
            Some(("topic", topic)) => topic,
            Some(("outbox", _)) => {
                let rule = format!("{text}: entries of one category cannot be relayed alone; use `outbox`");
                return Err(Error::invalid("source", rule));
            }
            _ => text,
        };
        headwater::TopicName::new(topic)?;
        Ok(Source::Topic(topic.to_owned()))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Topic(topic) if topic == "outbox" || topic.contains(':') => write!(f, "topic:{topic}"),
            Source::Topic(topic) => f.write_str(topic),
            Source::Outbox => f.write_str("outbox"),
        }
    }
}

/// A relay to be run.
///
/// It delivers each record at least once: what was confirmed is settled afterwards, and a crash between the two repeats it. The
/// message's id travels with it, so that the other side can recognize a repeat. Records of a key are delivered in order, unless
/// [`RelaySettings::key_order`] is off: a failed one holds back the later ones of its key.
pub struct Relay {
    headwater: Headwater,
    source: Source,
    sink: Arc<dyn Sink>,
    name: Option<String>,
    settings: RelaySettings,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Relay({} to {})", self.source, self.sink.kind())
    }
}

impl Relay {
    /// A relay from a source of this store to a sink.
    pub fn new(headwater: &Headwater, source: Source, sink: Arc<dyn Sink>) -> Self {
        let settings = RelaySettings::default();
        Relay { headwater: headwater.clone(), source, sink, name: None, settings }
    }

    /// Its name in logs and metrics; the source and the kind of the sink by default.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How it delivers.
    #[must_use]
    pub fn settings(mut self, settings: RelaySettings) -> Self {
        self.settings = settings;
        self
    }

    /// Subscribes the group of a topic, if it is new: from then on the topic keeps messages for this relay, whether it runs or not.
    pub async fn subscribe(&self) -> Result<()> {
        self.settings.check(&self.source)?;
        if let Source::Topic(topic) = &self.source {
            self.consumer(topic).open().await?.close().await?;
        }
        Ok(())
    }

    fn consumer(&self, topic: &str) -> ConsumerBuilder {
        topic::consumer(&self.headwater, topic, &self.settings.group_for(self.sink.kind()), &self.settings)
    }

    /// Runs it until it is shut down. A sink that cannot be reached yet is no error: it is probed until it answers.
    pub async fn run(self) -> Result<RunningRelay> {
        self.settings.check(&self.source)?;
        let Relay { headwater, source, sink, name, settings } = self;
        let name = name.unwrap_or_else(|| format!("{source} to {}", sink.kind()));
        let meter = Arc::new(Meter::new(&name, sink.kind()));
        let (initial, longest) = settings.probe_pace;
        let breaker = Breaker::new(&sink, &meter, Pace { initial, longest }, settings.timeout);
        let (key_order, timeout) = (settings.key_order, settings.timeout);
        let courier = Arc::new(Courier { sink, breaker, meter, key_order, timeout });
        let group = settings.group_for(courier.sink.kind());
        let work = match &source {
            Source::Topic(topic) => {
                let (running, calls) = topic::run(&headwater, topic, &group, &settings, &courier).await?;
                Work::Topic { running, calls }
            }
            Source::Outbox => {
                let (stop, stopping) = watch::channel(false);
                let source = OutboxSource::new(headwater.outbox(), &name, &settings, &courier, stopping);
                let (report, ended) = watch::channel(None);
                let task = tokio::spawn(async move {
                    let reason = source.run().await;
                    report.send_replace(Some(reason.unwrap_or_else(|| "stopped".into())));
                });
                Work::Outbox { stop, ended, task }
            }
        };
        let alarm =
            Alarm { headwater, source: source.clone(), group: group.clone(), every: settings.alarm_every };
        let alarm = tokio::spawn(alarm.run(Arc::clone(&courier)));
        tracing::info!(relay = name, %source, sink = courier.sink.kind(), "relay started");
        Ok(RunningRelay { name, source, courier, work: Some(work), alarm })
    }
}

enum Work {
    Topic { running: Running, calls: JoinSet<()> },
    Outbox { stop: watch::Sender<bool>, ended: watch::Receiver<Option<String>>, task: JoinHandle<()> },
}

/// Whether a relay delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayState {
    /// It delivers what comes.
    Running,
    /// Its sink is unavailable: nothing is sent until a probe succeeds.
    Waiting,
    /// It has ended by itself.
    Ended,
}

/// The health of a relay, since it was started.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RelayHealth {
    /// Its name.
    pub relay: String,
    /// Where its records come from.
    pub source: Source,
    /// The kind of its sink.
    pub sink: &'static str,
    /// Whether it delivers.
    pub state: RelayState,
    /// Why the sink is unavailable, and for how long.
    pub outage: Option<(SinkError, Duration)>,
    /// Records that the sink confirmed.
    pub delivered: u64,
    /// Deliveries that failed and are repeated.
    pub failed: u64,
    /// Records that the sink refused for good: dead letters.
    pub refused: u64,
    /// Why a delivery last failed.
    pub last_error: Option<String>,
    /// The health of its group, with its lag; of a topic only.
    pub consumer: Option<Health>,
}

/// A running relay. Dropping it stops it: what is under way is repeated later. [`RunningRelay::shutdown`] waits for it.
#[must_use = "the relay stops when this is dropped; keep it until the program ends"]
pub struct RunningRelay {
    name: String,
    source: Source,
    courier: Arc<Courier>,
    /// `None` once it was shut down.
    work: Option<Work>,
    alarm: JoinHandle<()>,
}

impl fmt::Debug for RunningRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunningRelay({})", self.name)
    }
}

impl RunningRelay {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its health.
    pub fn health(&self) -> RelayHealth {
        let counts = self.courier.meter.counts();
        let outage = self.courier.breaker.outage().map(|outage| (outage.error, outage.since.elapsed()));
        let (ended, consumer) = match &self.work {
            Some(Work::Topic { running, .. }) => (running.ended().is_some(), Some(running.health())),
            Some(Work::Outbox { ended, .. }) => (ended.borrow().is_some(), None),
            None => (true, None),
        };
        let state = match (ended, &outage) {
            (true, _) => RelayState::Ended,
            (false, Some(_)) => RelayState::Waiting,
            (false, None) => RelayState::Running,
        };
        RelayHealth {
            relay: self.name.clone(),
            source: self.source.clone(),
            sink: self.courier.sink.kind(),
            state,
            outage,
            delivered: counts.delivered,
            failed: counts.failed,
            refused: counts.refused,
            last_error: counts.last_error,
            consumer,
        }
    }

    /// Waits until it ends by itself, and returns why: its group was cancelled or removed, or the store was closed.
    pub async fn until_ended(&self) -> String {
        match &self.work {
            Some(Work::Topic { running, .. }) => running.until_ended().await.to_string(),
            Some(Work::Outbox { ended, .. }) => {
                let mut ended = ended.clone();
                let reason = ended.wait_for(Option::is_some).await;
                reason.map_or_else(
                    |_| "its task has ended".to_owned(),
                    |reason| reason.clone().unwrap_or_default(),
                )
            }
            None => "it was shut down".to_owned(),
        }
    }

    /// Takes nothing more, waits up to `grace` for what is being sent and for its outcome to be stored, releases the rest, and ends the
    /// connections of the sink. While the sink is unavailable there is nothing to wait for.
    pub async fn shutdown(mut self, grace: Duration) -> Result<()> {
        let grace = if self.courier.breaker.is_open() { Duration::ZERO } else { grace };
        let ended = match self.work.take() {
            Some(Work::Topic { running, mut calls }) => {
                let stopped = running.shutdown(grace).await.map(drop);
                calls.shutdown().await;
                stopped
            }
            Some(Work::Outbox { stop, mut task, .. }) => {
                stop.send_replace(true);
                // Marks of what was sent are stored before it ends; an unavailable sink has nothing under way.
                let at_least = grace.max(Duration::from_secs(1));
                if tokio::time::timeout(at_least, &mut task).await.is_err() {
                    task.abort();
                    tracing::warn!(
                        relay = self.name,
                        "relay stopped with entries under way: they are sent again after the claim timeout"
                    );
                }
                Ok(())
            }
            None => Ok(()),
        };
        self.courier.sink.close().await;
        tracing::info!(relay = self.name, "relay stopped");
        ended
    }
}

impl Drop for RunningRelay {
    fn drop(&mut self) {
        self.alarm.abort();
        match self.work.take() {
            Some(Work::Outbox { stop, .. }) => drop(stop.send_replace(true)),
            Some(Work::Topic { running, calls }) => {
                // Handlers are stopped before what they wait for: their messages are released, and no attempt is counted.
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(async move {
                        let _ = running.shutdown(Duration::ZERO).await;
                        drop(calls);
                    });
                }
            }
            None => {}
        }
    }
}

/// Repeats that a sink is unavailable, with the backlog, at a bounded pace: nothing grows without a line that an operator sees.
struct Alarm {
    headwater: Headwater,
    source: Source,
    group: String,
    every: Duration,
}

impl Alarm {
    async fn run(self, courier: Arc<Courier>) {
        let mut state = courier.breaker.watch();
        loop {
            if state.wait_for(|state| *state == State::Open).await.is_err() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(self.every) => {}
                _ = state.wait_for(|state| *state == State::Closed) => continue,
            }
            let Some(outage) = courier.breaker.outage() else { continue };
            let (relay, sink, error) = (courier.meter.relay(), courier.sink.kind(), &outage.error);
            let (open_for, backlog) = (outage.since.elapsed(), self.backlog().await);
            match error {
                SinkError::Unavailable(_) => {
                    tracing::warn!(relay, sink, ?open_for, backlog, %error, "relay waits: the sink is unavailable");
                }
                SinkError::Misconfigured(_) => {
                    tracing::error!(relay, sink, ?open_for, backlog, %error, "relay waits: the sink refuses it, correct its configuration");
                }
            }
        }
    }

    /// What waits, in words.
    async fn backlog(&self) -> String {
        let counted = match &self.source {
            Source::Topic(topic) => {
                let group = self.headwater.groups(topic).get(&self.group).await;
                group.map(|group| format!("{} messages", group.status.lag))
            }
            Source::Outbox => {
                let oldest = self.headwater.outbox().list(1, |all| all).await;
                oldest.map(|entries| match entries.first() {
                    Some(entry) => format!("oldest entry of {}", entry.created_at),
                    None => "none".to_owned(),
                })
            }
        };
        counted.unwrap_or_else(|error| format!("unknown: {error}"))
    }
}
