//! Cron jobs: a cron expression in a time zone, published once per tick whichever processes run.
//!
//! Every process that takes part starts the job under the same name. The first process that fires a tick in the store
//! publishes it. So no leader is needed, and no tick is lost while any process runs.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::codec::IntoMessage;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::Gate;
use crate::limits::CRON_CATCH_UP_MAX;
use crate::message::NewMessage;
use crate::name::{TopicName, check_name};
use crate::observe::health::Health;
use crate::observe::metrics::Registry;
use crate::store::{CronDescription, CronStatus, Delivery};

mod run;
mod schedule;

use run::{Order, Runner, State};
use schedule::Schedule;

/// What happens to ticks that came due while no process was running, or the database was unavailable.
///
/// A tick counts as missed once it is two minutes old, so that a short restart misses nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missed {
    /// They are dropped: only future ticks are published.
    Skip,
    /// Only the last of them is published.
    #[default]
    FireOnce,
    /// Each is published, oldest first; of more than `at_most`, the last ones.
    FireAll {
        /// Most missed ticks to publish: 1 to 1 000.
        at_most: u32,
    },
}

/// A job to be started.
///
/// An expression has five fields (minute, hour, day of month, month, weekday) or six with seconds in front. Where both
/// day fields are given, either of them suffices, as usual in cron.
///
/// Daylight saving: an expression with certain hours fires for each of its times once a day. A time that the change
/// skips fires at the first instant after the gap; a time that occurs twice fires the first time. An expression for
/// every hour follows elapsed time: it fires during the repeated hour as in any other.
#[derive(Debug)]
pub struct CronBuilder {
    store: Arc<dyn Delivery>,
    clock: Clock,
    metrics: Arc<Registry>,
    gate: Arc<Gate>,
    job: String,
    expression: String,
    time_zone: String,
    topic: Option<String>,
    message: Result<NewMessage>,
    missed: Missed,
}

impl CronBuilder {
    pub(crate) fn new(
        store: Arc<dyn Delivery>,
        clock: Clock,
        metrics: Arc<Registry>,
        gate: Arc<Gate>,
        job: &str,
        expression: &str,
    ) -> Self {
        CronBuilder {
            store,
            clock,
            metrics,
            gate,
            job: job.to_owned(),
            expression: expression.to_owned(),
            time_zone: "UTC".to_owned(),
            topic: None,
            message: Ok(NewMessage::default()),
            missed: Missed::default(),
        }
    }

    /// The IANA name of the expression's time zone; UTC by default.
    #[must_use]
    pub fn time_zone(mut self, name: &str) -> Self {
        name.clone_into(&mut self.time_zone);
        self
    }

    /// The topic that ticks are published to.
    #[must_use]
    pub fn topic(mut self, topic: &str) -> Self {
        self.topic = Some(topic.to_owned());
        self
    }

    /// The message of each tick; it gets the headers `headwater-cron-job` and `headwater-cron-tick`.
    #[must_use]
    pub fn message(mut self, message: impl IntoMessage) -> Self {
        self.message = message.into_message();
        self
    }

    /// What happens to missed ticks.
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Starts the job. A job that is new in the store fires from now on; a known job continues after its last tick.
    pub async fn start(self) -> Result<CronJob> {
        if self.job.is_empty() {
            let rule = "must not be empty; give it a unique name, the same in all processes";
            return Err(Error::invalid("cron job", rule));
        }
        check_name("cron job", &self.job)?;
        let topic = self.topic.ok_or_else(|| {
            Error::invalid("topic", "none was given; set the topic of the ticks with `topic`")
        })?;
        let topic = TopicName::new(topic)?;
        check_missed(self.missed)?;
        let schedule = Schedule::parse(&self.expression, &self.time_zone)?;
        let now = run::now(&self.clock);
        schedule.check_comes(now)?;
        let message = self.message?;
        check_message(&run::message_of(&message, &self.job, now))?;

        let checked = self.store.cron_last(&self.job, now).await?;
        let (job, expression, time_zone) = (self.job.clone(), self.expression, self.time_zone);
        let description = CronDescription { job, expression, time_zone, topic: topic.clone() };
        self.store.cron_describe(&description).await?;
        let state = Arc::new(State::new(self.job.clone(), topic.clone()));
        let runner = Runner {
            metrics: self.metrics.topic(&topic),
            store: self.store,
            clock: self.clock,
            schedule,
            missed: self.missed,
            job: self.job,
            topic,
            message,
            checked,
            state: Arc::clone(&state),
        };
        let (orders, given) = mpsc::channel(1);
        let inside = self.gate.enter().ok_or_else(|| {
            Error::new(ErrorKind::Closed, format!("cron job {} not started: the handle is closed", state.job))
        })?;
        let task = tokio::spawn(run::run(runner, given, inside));
        Ok(CronJob { orders, task, state, gate: self.gate })
    }
}

impl CronStatus {
    /// Its next tick after a time, by its description. `None` if there is none, or the expression is not known.
    pub fn next_tick(&self, after: jiff::Timestamp) -> Option<jiff::Timestamp> {
        let described = self.description.as_ref()?;
        Schedule::parse(&described.expression, &described.time_zone).ok()?.next(after)
    }
}

fn check_missed(missed: Missed) -> Result<()> {
    match missed {
        Missed::FireAll { at_most } if at_most == 0 || at_most > CRON_CATCH_UP_MAX => Err(Error::invalid(
            "missed",
            format!(
                "FireAll at most {at_most}, 1 to {CRON_CATCH_UP_MAX} are allowed; to fire none, use Skip"
            ),
        )),
        _ => Ok(()),
    }
}

/// Refuses fields that identify one message: they would make all ticks the same message.
fn check_message(message: &NewMessage) -> Result<()> {
    for (field, given) in [
        ("message_id", message.message_id.is_some()),
        ("dedup_key", message.dedup_key.is_some()),
        ("deliver_at", message.deliver_at.is_some()),
        ("delay", message.delay.is_some()),
    ] {
        if given {
            let rule = "would be the same for every tick of the job; leave it out, ticks are published once";
            return Err(Error::invalid(field, rule));
        }
    }
    message.validate()
}

/// A running job of this process. It ends when this is dropped; [`CronJob::stop`] waits for it, and so does
/// [`Headwater::shutdown`](crate::Headwater::shutdown).
#[must_use = "the job ends when this is dropped"]
#[derive(Debug)]
pub struct CronJob {
    orders: mpsc::Sender<Order>,
    task: JoinHandle<()>,
    state: Arc<State>,
    gate: Arc<Gate>,
}

impl CronJob {
    /// Reads the clock now and publishes the ticks that are due; returns how many this process published.
    ///
    /// With a manual clock the job reads the clock only here: move the clock, then step.
    pub async fn step(&self) -> Result<u64> {
        let stopped = || Error::new(ErrorKind::Closed, format!("cron job {} has stopped", self.state.job));
        let (answer, answered) = oneshot::channel();
        self.orders.send(Order::Check(answer)).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    /// Its health: how many ticks it published, and its last errors.
    pub fn health(&self) -> Health {
        let health = self.state.health();
        if self.gate.is_closed() { health.stopped("the handle is closed") } else { health }
    }

    /// Stops the job in this process; a publish under way is finished first. The job's last tick stays in the store.
    pub async fn stop(self) {
        drop(self.orders);
        if let Err(error) = self.task.await {
            tracing::error!(job = self.state.job, %error, "cron job task failed");
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;
