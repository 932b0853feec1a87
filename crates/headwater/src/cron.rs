//! Periodic messages: a cron expression in a time zone, published once per tick whichever process is up.
//!
//! Every process that should take part starts the job under the same name. The store decides who publishes a tick:
//! the first who asks. So no process leads, and none is missed.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::codec::IntoMessage;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::CRON_CATCH_UP_MAX;
use crate::message::NewMessage;
use crate::name::{TopicName, check_name};
use crate::observe::health::Health;
use crate::observe::metrics::Registry;
use crate::store::Delivery;

mod run;
mod schedule;

use run::{Order, Runner, State};
use schedule::Schedule;

/// What becomes of ticks that came while no process was up, or the database was not.
///
/// A tick is missed once it is two minutes old: a restart at the wrong moment misses nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missed {
    /// Nothing: the next tick is the next one to come.
    Skip,
    /// The last of them is published, for all.
    #[default]
    FireOnce,
    /// Each is published, oldest first; of more than `at_most` the last ones.
    FireAll {
        /// Most ticks to make up for: 1 to 1 000.
        at_most: u32,
    },
}

/// A job about to be started.
///
/// An expression has five fields (minute, hour, day of month, month, weekday) or six with seconds in front. Where both
/// days are given, one of them suffices, as ever in cron.
///
/// Clocks that change: an expression with certain hours fires for each of its times once a day. A time that is left
/// out fires at the first instant after the gap; one that comes twice fires the first time. An expression for every
/// hour follows the time that passes: it fires through the repeated hour as through any other.
#[derive(Debug)]
pub struct CronBuilder {
    store: Arc<dyn Delivery>,
    clock: Clock,
    metrics: Arc<Registry>,
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
        job: &str,
        expression: &str,
    ) -> Self {
        CronBuilder {
            store,
            clock,
            metrics,
            job: job.to_owned(),
            expression: expression.to_owned(),
            time_zone: "UTC".to_owned(),
            topic: None,
            message: Ok(NewMessage::default()),
            missed: Missed::default(),
        }
    }

    /// The IANA name of the time zone the expression is meant in; UTC if it is not said.
    #[must_use]
    pub fn time_zone(mut self, name: &str) -> Self {
        name.clone_into(&mut self.time_zone);
        self
    }

    /// Where ticks are published.
    #[must_use]
    pub fn topic(mut self, topic: &str) -> Self {
        self.topic = Some(topic.to_owned());
        self
    }

    /// What is published; it gets the headers `headwater-cron-job` and `headwater-cron-tick`.
    #[must_use]
    pub fn message(mut self, message: impl IntoMessage) -> Self {
        self.message = message.into_message();
        self
    }

    /// What becomes of missed ticks.
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Starts it. A job that is new in the store fires from now on; one that is known goes on where it was.
    pub async fn start(self) -> Result<CronJob> {
        if self.job.is_empty() {
            let rule = "must not be empty; give it a name of its own, by which all processes know it";
            return Err(Error::invalid("cron job", rule));
        }
        check_name("cron job", &self.job)?;
        let topic = self.topic.ok_or_else(|| {
            Error::invalid("topic", "none was given; say where ticks are published with `topic`")
        })?;
        let topic = TopicName::new(topic)?;
        check_missed(self.missed)?;
        let schedule = Schedule::parse(&self.expression, &self.time_zone)?;
        let now = run::now(&self.clock);
        schedule.check_comes(now)?;
        let message = self.message?;
        check_message(&run::message_of(&message, &self.job, now))?;

        let looked = self.store.cron_last(&self.job, now).await?;
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
            looked,
            state: Arc::clone(&state),
        };
        let (orders, given) = mpsc::channel(1);
        let task = tokio::spawn(run::run(runner, given));
        Ok(CronJob { orders, task, state })
    }
}

fn check_missed(missed: Missed) -> Result<()> {
    match missed {
        Missed::FireAll { at_most } if at_most == 0 || at_most > CRON_CATCH_UP_MAX => Err(Error::invalid(
            "missed",
            format!(
                "FireAll at most {at_most}, 1 to {CRON_CATCH_UP_MAX} are allowed; to make up for none, use Skip"
            ),
        )),
        _ => Ok(()),
    }
}

/// What makes one message unique would make all ticks the same one.
fn check_message(message: &NewMessage) -> Result<()> {
    for (field, given) in [
        ("message_id", message.message_id.is_some()),
        ("dedup_key", message.dedup_key.is_some()),
        ("deliver_at", message.deliver_at.is_some()),
    ] {
        if given {
            let rule = "would be the same for every tick of the job; leave it out, ticks are published once";
            return Err(Error::invalid(field, rule));
        }
    }
    message.validate()
}

/// A running job of this process. It ends when this is dropped; [`CronJob::stop`] waits for it.
#[must_use = "the job ends when this is dropped"]
#[derive(Debug)]
pub struct CronJob {
    orders: mpsc::Sender<Order>,
    task: JoinHandle<()>,
    state: Arc<State>,
}

impl CronJob {
    /// Looks at the clock now and publishes what is due; answers how many ticks this process published.
    ///
    /// With a manual clock this is the only time the job looks: move the clock, then step.
    pub async fn step(&self) -> Result<u64> {
        let stopped = || Error::new(ErrorKind::Closed, format!("cron job {} has stopped", self.state.job));
        let (answer, answered) = oneshot::channel();
        self.orders.send(Order::Look(answer)).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    /// How it is doing: what it published, and its last errors.
    pub fn health(&self) -> Health {
        self.state.health()
    }

    /// Stops it in this process; a publish under way is finished first. The job's place stays in the store.
    pub async fn stop(self) {
        drop(self.orders);
        if let Err(error) = self.task.await {
            tracing::error!(job = self.state.job, %error, "cron job ended by itself");
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;
