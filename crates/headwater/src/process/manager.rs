//! The manager: the consumer that moves processes.
//!
//! It is a group like any other, on a topic of its own for each type: replies, timers and what operators ask for come to it
//! as messages, timers as scheduled ones. Its handler is transactional. The inbox entry of the message, the change of the
//! process, the events in its log, the next commands, the next timers and the ack commit together.
//!
//! **Why a process continues where it was, wherever it is killed.** Before that commit nothing has happened: the message is
//! redelivered and decided again, from the same log. After it all of it has: the message is done, the commands are in their
//! topics and the timers in the schedule, where they are found by whichever program runs next. There is no state outside of
//! the database. What the pure rules in [`turn`](super::turn) decide depends on the log that the transaction has locked, and
//! so two programs that manage one type never decide from the same state: the second waits for the first, on PostgreSQL for
//! the row and on SQLite for the file, and reads what it wrote. Messages of one process are in one lane of an ordered group,
//! which has one owner: no two transactions lock the same processes in different orders.
//!
//! Messages are decided in slices, with one statement for all that is read or written: `slice.rs`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use uuid::Uuid;

use super::definition::{ProcessType, topic_of};
use super::message::{self, Sent};
use super::plan::Plan;
use super::rows;
use super::turn::{Batch, Input, Outgoing, Turn};
use super::{ProcessData, ProcessEvent, ProcessInstance, ProcessStatus, Processes};
use crate::consumer::{ConsumerBuilder, GroupOrder};
use crate::dead_letter::{DeadLetters, ParkedCommand};
use crate::error::{Error, Result};
use crate::handler::{Bury, HandlerResult, Handling};
use crate::headwater::TopicBuilder;
use crate::message::{Message, NewMessage};
use crate::store::repository::Verb;
use crate::topic::TopicSettings;
use crate::transaction::{Transaction, Value};

mod slice;

/// The group of the manager in the topic of a type.
const GROUP: &str = "manager";
/// How long its messages are kept once they are handled: the log of each process has what they said.
const KEPT_FOR: Duration = Duration::from_secs(3_600);
/// On PostgreSQL as many transactions as lanes run at once. On SQLite one thread writes, and one lane makes the largest batches.
const LANES: u16 = 8;
/// Messages in one transaction, by measurement: with fewer there are more statements and commits for each, with more the lanes
/// wait for each other's locks and commits.
const BATCH: u32 = 100;
/// On SQLite a commit waits for the disk while nothing else is written: fewer and larger ones.
const BATCH_OF_ONE_LANE: u32 = 300;
/// A message fails only if the database does, or a declaration lacks the step of a running process: it is tried for long.
const ATTEMPTS: u32 = 1_000;
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

impl Processes {
    /// The consumer that manages processes of a type: run it, in as many programs as needed. Topics that are missing are
    /// created: `process.<type>`, and those of the steps as queues.
    ///
    /// Every program that manages a type has the same declaration, and during a deploy two versions of it.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> headwater::Result<()> {
    /// # use std::time::Duration;
    /// use headwater::Headwater;
    /// use headwater::process::{Command, Commands, ProcessStatus, ProcessType, Step};
    /// use headwater::transaction::Transaction;
    ///
    /// let headwater = Headwater::in_memory().await?;
    /// let order = ProcessType::new("order").step(Step::new("reserve", "stock", "Reserve").compensation("Release"));
    /// let manager = headwater.processes().manager(&order).await?.run().await?;
    ///
    /// let commands = Commands::new()
    ///     .on("Reserve", |_: Transaction, _: Command| async { Ok(serde_json::json!({ "shelf": 4 })) })
    ///     .on("Release", |_: Transaction, _: Command| async { Ok(()) });
    /// let stock = headwater.consumer("stock", "stock").handling("worker", commands.handling()).run().await?;
    ///
    /// let started = headwater.processes().start("order").business_key("o-17").once().await?;
    /// let process = headwater.processes().ended(started.process.id(), Duration::from_secs(10)).await?;
    /// assert_eq!(process.status(), ProcessStatus::Succeeded);
    /// assert_eq!(process.data().unwrap().get::<u64>("shelf")?, Some(4));
    /// # stock.shutdown(Duration::from_secs(10)).await?;
    /// # manager.shutdown(Duration::from_secs(10)).await?;
    /// # headwater.close().await }
    /// ```
    pub async fn manager(&self, process_type: &ProcessType) -> Result<ConsumerBuilder> {
        let mut plan = process_type.plan()?;
        let topic = self.ensure_topic(&plan.name).await?;
        for name in plan.topics() {
            let found = TopicBuilder::new(Arc::clone(self.headwater.store()), &name).find_or_create().await?;
            plan.set_payload_bytes_max(&name, found.settings.payload_bytes_max);
        }
        let manager =
            Arc::new(Manager { topic: topic.clone(), plan, dead_letters: self.headwater.dead_letters() });
        let whole = Arc::clone(&manager);
        let handling = Handling::transactional(move |tx: Transaction, message: Message| {
            let manager = Arc::clone(&manager);
            async move { manager.handle(&tx, &message).await }
        });
        let handling = handling.slices(whole);
        let consumer = self.headwater.consumer(&topic, GROUP);
        let (lanes, consumer) = match self.headwater.store().engine() {
            "sqlite" => (1, consumer.batch(BATCH_OF_ONE_LANE)),
            _ => (LANES, consumer.batch(BATCH)),
        };
        Ok(consumer
            .order(GroupOrder::ByKey { lanes: Some(lanes) })
            .max_attempts(ATTEMPTS)
            .backoff(BACKOFF.0, BACKOFF.1)
            .handling(GROUP, handling))
    }

    /// The topic of a type, created if it is missing.
    pub(crate) async fn ensure_topic(&self, process_type: &str) -> Result<String> {
        let topic = topic_of(process_type)?;
        let settings = TopicSettings {
            message_retention: Some(KEPT_FOR),
            zero_subscription_retention: Duration::from_secs(7 * 24 * 3_600),
            ..TopicSettings::default()
        };
        let store = Arc::clone(self.headwater.store());
        TopicBuilder::new(store, &topic).settings(settings).find_or_create().await?;
        Ok(topic)
    }
}

struct Manager {
    topic: String,
    plan: Plan,
    dead_letters: DeadLetters,
}

impl Manager {
    async fn handle(&self, tx: &Transaction, message: &Message) -> HandlerResult {
        let (id, input) = match message::input_of(message) {
            Ok(meant) => meant,
            Err(why) => {
                let (name, topic) = (&self.plan.name, &self.topic);
                return Err(Bury(format!(
                    "not a message for the manager of {name}: {why}; if it is a reply, correct it with \
                     `headwater dead-letter redrive {topic} --id … --payload …`"
                ))
                .into());
            }
        };
        self.turn(tx, id, input).await?;
        Ok(())
    }

    /// One message: reads the process, decides, and writes what was decided.
    async fn turn(&self, tx: &Transaction, id: Uuid, input: Input) -> Result<()> {
        let Some((instance, events)) = rows::load(tx, id).await? else {
            tracing::warn!(process = %id, process_type = self.plan.name, "message for an unknown process ignored");
            return Ok(());
        };
        let decided = self.decide(instance, &events, input)?;
        decided.report();
        self.write(tx, decided).await
    }

    /// What follows from a message, for a process with this log.
    fn decide(
        &self,
        instance: ProcessInstance,
        events: &[(u64, ProcessEvent)],
        input: Input,
    ) -> Result<Decided> {
        if instance.process_type() != self.plan.name {
            let (id, process_type) = (instance.id(), instance.process_type());
            let text = format!("process {id} is of type {process_type}, not {}", self.plan.name);
            return Err(Error::invalid("process", text));
        }
        let before = instance.status();
        let mut turn = Turn::new(&self.plan, instance, events);
        turn.take(input)?;
        let (batches, outgoing, after) = turn.finish();
        Ok(Decided { before, batches, outgoing, after })
    }

    /// Sent together: on PostgreSQL no statement waits for the answer to another. The first that fails fails the message, and
    /// all of them are rolled back.
    async fn write(&self, tx: &Transaction, decided: Decided) -> Result<()> {
        let Decided { batches, outgoing, after, .. } = decided;
        if batches.is_empty() && outgoing.is_empty() {
            return Ok(());
        }
        for parked in self.parked(&batches, &after) {
            self.dead_letters.within(tx).park(&parked).await?;
        }
        let now = tx.time_of(None).await?;
        let changes = async {
            for Batch { instance, entries } in &batches {
                rows::change(tx, now.clone(), instance, entries).await?;
            }
            Ok::<(), Error>(())
        };
        let sends = try_join_all(outgoing.iter().map(|one| self.send(tx, one, &after)));
        tokio::try_join!(changes, sends).map(drop)
    }

    /// A compensation that failed is parked with the event that says so, in the same transaction: a person finds both or none.
    fn parked(&self, batches: &[Batch], process: &ProcessInstance) -> Vec<ParkedCommand> {
        let mut parked = Vec::new();
        for (_, event) in batches.iter().flat_map(|batch| &batch.entries) {
            let ProcessEvent::CompensationFailed { step, command_id, error } = event else { continue };
            let compensation = self.plan.step(step).and_then(|step| step.compensation.as_ref());
            let data = process.data().map_or("null", ProcessData::as_str).to_owned();
            let mut command =
                ParkedCommand::new(command_id, compensation.unwrap_or(step), data, "process manager")
                    .failed_status("FAILED")
                    .error(
                        "CompensationFailed",
                        format!("process {} of type {}, step {step}: {error}", process.id(), self.plan.name),
                    )
                    .attempts(process.retries());
            if let Some(key) = process.business_key() {
                command = command.business_key(key);
            }
            parked.push(command);
        }
        parked
    }

    async fn send(&self, tx: &Transaction, outgoing: &Outgoing, process: &ProcessInstance) -> Result<()> {
        match self.posted(outgoing, process)? {
            Posted::Publish(topic, message) => tx.publish(&topic, *message).await.map(drop),
            Posted::Cancel(id) => {
                let params: Vec<Value> = vec![self.topic.as_str().into(), tx.id_value(id)];
                tx.rows_of(Verb::ProcessCancelTimer, params).await.map(drop)
            }
        }
    }

    /// What is sent, as a message.
    fn posted(&self, outgoing: &Outgoing, process: &ProcessInstance) -> Result<Posted> {
        Ok(match outgoing {
            Outgoing::Command { step, topic, command, command_id, undoes } => {
                let sent = Sent { step, command, command_id, undoes: undoes.as_deref() };
                Posted::Publish(topic.clone(), Box::new(message::command(process, &self.topic, &sent)?))
            }
            Outgoing::Timer { id, command_id, kind, since, delay } => {
                let timer = message::timer(process.id(), command_id, *kind, *since)?;
                Posted::Publish(self.topic.clone(), Box::new(timer.message_id(*id).delay(*delay)))
            }
            Outgoing::Cancel { id } => Posted::Cancel(*id),
        })
    }
}

/// What a message led to.
struct Decided {
    before: ProcessStatus,
    batches: Vec<Batch>,
    outgoing: Vec<Outgoing>,
    after: ProcessInstance,
}

/// A message and its topic, or a timer that is not needed any more.
enum Posted {
    Publish(String, Box<NewMessage>),
    Cancel(Uuid),
}

impl Decided {
    /// What an operator should know. The transaction may still be rolled back and decided again: then it is logged again.
    fn report(&self) {
        let Decided { before, batches, after, .. } = self;
        let (process, process_type) = (after.id(), after.process_type());
        let key = after.business_key().unwrap_or_default();
        for (_, event) in batches.iter().flat_map(|batch| &batch.entries) {
            match event {
                ProcessEvent::CompensationFailed { step, error, .. } => {
                    tracing::error!(
                        %process, process_type, key, step, error,
                        "compensation failed: retry it with `headwater process retry`, or end it with `headwater process fail`"
                    );
                }
                event => {
                    tracing::debug!(%process, process_type, key, event = event.tag(), step = event.step(), "process moved");
                }
            }
        }
        if *before != after.status() && after.status() == ProcessStatus::Compensating {
            tracing::warn!(%process, process_type, key, "process failed, compensation started");
        }
    }
}
