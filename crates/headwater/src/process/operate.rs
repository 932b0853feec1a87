//! What programs and operators do with processes as a whole: start, pause, resume, retry, fail, wait.

use std::future::IntoFuture;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::definition::topic_of;
use super::event::check_reason;
use super::execution::{AttemptState, Execution, derived_id};
use super::message::{self, Control};
use super::rows::{self, no_such_process};
use super::{ProcessData, ProcessEvent, ProcessInstance, ProcessStatus, Processes};
use crate::error::{Error, ErrorKind, Result};
use crate::name::check_name;
use crate::store::Finding;
use crate::store::repository::Verb;
use crate::transaction::{Transaction, Value};

/// Most processes that need a person and are listed as findings.
const ATTENTION_MAX: u32 = 20;
/// How often a process is read while its end is awaited.
const POLL: Duration = Duration::from_millis(50);

/// A process to be started: set its key and data, then await it.
///
/// Inside of a transaction ([`Processes::within`]) the process begins when that commits, or never. The topic of its type must
/// exist then: a manager creates it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// # let headwater = headwater::Headwater::in_memory().await?;
/// let processes = headwater.processes();
/// let first = processes.start("order").business_key("o-17").data(&serde_json::json!({ "total": 250 })).once().await?;
/// // A client that repeats its request starts nothing.
/// let again = processes.start("order").business_key("o-17").once().await?;
/// assert!(first.is_new && !again.is_new);
/// assert_eq!(again.process.id(), first.process.id());
/// # headwater.close().await }
/// ```
#[derive(Debug)]
#[must_use = "nothing is started before it is awaited"]
pub struct StartProcess {
    processes: Processes,
    process_type: String,
    business_key: Option<String>,
    data: Result<Option<ProcessData>>,
    once: bool,
}

/// A process that was started, now or before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// The process.
    pub process: ProcessInstance,
    /// Whether this call started it.
    pub is_new: bool,
}

impl StartProcess {
    /// What it is about.
    pub fn business_key(mut self, key: &str) -> Self {
        self.business_key = Some(key.to_owned());
        self
    }

    /// The data it begins with: a struct, a map, or [`ProcessData`] through [`data_json`](Self::data_json).
    pub fn data<T: Serialize + ?Sized>(mut self, data: &T) -> Self {
        self.data = ProcessData::new(data).map(Some);
        self
    }

    /// The same, as JSON that is kept as it is.
    pub fn data_json(mut self, data: ProcessData) -> Self {
        self.data = Ok(Some(data));
        self
    }

    /// Once per type and business key: if there is a process of both, also one that has ended, that one is returned, however
    /// many callers start it at the same moment. It holds for as long as ended processes are kept.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    async fn run(self) -> Result<Started> {
        let StartProcess { processes, process_type, business_key, data, once } = self;
        let topic = topic_of(&process_type)?;
        let mut new = ProcessInstance::create(&process_type, business_key.as_deref(), data?);
        new.check_new(&new.started())?;
        if once {
            let key = business_key.as_deref().ok_or_else(|| {
                Error::invalid(
                    "business_key",
                    "a process that is started once needs one; set it, or leave out `once`",
                )
            })?;
            new = new.with_id(derived_id(&[process_type.as_bytes(), key.as_bytes()]));
        }
        if processes.repository.transaction().is_none() {
            processes.ensure_topic(&process_type).await?;
        }
        processes.write(move |tx, now| async move { start(&tx, now, &topic, &new, once).await }).await
    }
}

impl IntoFuture for StartProcess {
    type Output = Result<Started>;
    type IntoFuture = BoxFuture<'static, Result<Started>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// Inserts the process and publishes the message that begins it. Why it starts once: its id is made of its type and key, and
/// an id is inserted once. A second transaction waits for the first, and then finds the process, or inserts it itself.
async fn start(
    tx: &Transaction,
    now: Value,
    topic: &str,
    new: &ProcessInstance,
    once: bool,
) -> Result<Started> {
    if let (true, Some(key)) = (once, new.business_key()) {
        // One that was started without `once` has another id.
        let params = vec![new.process_type().into(), key.into()];
        let known = tx.rows_of(Verb::ProcessFindByBusinessKey, params).await?;
        if let Some(known) = known.first() {
            return Ok(Started { process: rows::process_of(known)?, is_new: false });
        }
    }
    match rows::insert_if_absent(tx, now, new, &new.started()).await? {
        Some(process) => {
            tx.publish(topic, message::start(process.id())).await?;
            Ok(Started { process, is_new: true })
        }
        None => {
            let known = tx.rows_of(Verb::ProcessFindById, vec![tx.id_value(new.id())]).await?;
            let known = known.first().ok_or_else(|| no_such_process(new.id()))?;
            Ok(Started { process: rows::process_of(known)?, is_new: false })
        }
    }
}

impl Processes {
    /// Describes a process of this type to start. A [manager](Self::manager) of the type carries it out.
    pub fn start(&self, process_type: &str) -> StartProcess {
        StartProcess {
            processes: self.clone(),
            process_type: process_type.to_owned(),
            business_key: None,
            data: Ok(None),
            once: false,
        }
    }

    /// Pauses a process: no further command is sent, and no time-out counts, until it is resumed. Commands that were sent
    /// may still be carried out, and their replies are recorded. A paused process stays as it is; one that has ended is
    /// `InvalidTransition`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// use headwater::process::ProcessStatus;
    ///
    /// let processes = headwater.processes();
    /// let id = processes.start("order").await?.process.id();
    /// assert_eq!(processes.pause(id, "stock is counted").await?.status(), ProcessStatus::Paused);
    /// assert_eq!(processes.resume(id, "done").await?.status(), ProcessStatus::Running);
    /// # headwater.close().await }
    /// ```
    pub async fn pause(&self, id: Uuid, reason: &str) -> Result<ProcessInstance> {
        let (reason, paused_by) = self.why(reason)?;
        self.operate(id, move |tx, now, instance, _| async move {
            if instance.status() == ProcessStatus::Paused {
                return Ok(instance);
            }
            let event = ProcessEvent::ProcessPaused { reason, paused_by };
            change(&tx, now, &instance.with_status(ProcessStatus::Paused), event).await
        })
        .await
    }

    /// Resumes a paused process: what was under way is waited for again, and what was decided meanwhile is carried out. A
    /// process that is not paused stays as it is; one that has ended is `InvalidTransition`.
    pub async fn resume(&self, id: Uuid, reason: &str) -> Result<ProcessInstance> {
        let (reason, resumed_by) = self.why(reason)?;
        self.operate(id, move |tx, now, instance, _| async move {
            if instance.status().is_end() {
                return Err(ended(&instance));
            }
            let Some(interrupted) = instance.paused_in() else { return Ok(instance) };
            let event = ProcessEvent::ProcessResumed { reason, resumed_by };
            let resumed = instance.with_status(interrupted.resumed());
            let resumed = change(&tx, now.clone(), &resumed, event).await?;
            signal(&tx, now, &resumed, Control::Continue).await?;
            Ok(resumed)
        })
        .await
    }

    /// Tries what failed again, now: a step that waits for its back-off, or a compensation that was given up.
    /// `InvalidTransition` if there is nothing to retry.
    pub async fn retry(&self, id: Uuid) -> Result<ProcessInstance> {
        self.operate(id, move |tx, now, instance, execution| async move {
            let failed =
                |state: AttemptState| matches!(state, AttemptState::Failed { .. } | AttemptState::Parked);
            let mut attempts = execution.steps.iter().chain(&execution.undone);
            let is_open = matches!(instance.status(), ProcessStatus::Running | ProcessStatus::Compensating);
            if !is_open || !attempts.any(|attempt| failed(attempt.state)) {
                let text =
                    format!("process {id} is {}, and nothing of it waits for a retry", instance.status());
                return Err(Error::new(ErrorKind::InvalidTransition, format!("{text}; nothing was changed")));
            }
            signal(&tx, now, &instance, Control::Retry).await?;
            Ok(instance)
        })
        .await
    }

    /// Ends a process as FAILED, at once: what it completed is not undone, and replies that still come are ignored.
    /// `InvalidTransition` if it has ended.
    pub async fn fail(&self, id: Uuid, reason: &str) -> Result<ProcessInstance> {
        let (reason, by) = self.why(reason)?;
        self.operate(id, move |tx, now, instance, _| async move {
            if instance.status().is_end() {
                return Err(ended(&instance));
            }
            let reason = if reason.is_empty() {
                format!("ended by {by}")
            } else {
                format!("{reason} (ended by {by})")
            };
            let mut at = instance;
            // Neither a new process nor a paused one becomes FAILED.
            if matches!(at.status(), ProcessStatus::New | ProcessStatus::Paused) {
                let open = at.paused_in().unwrap_or(at.status()).resumed();
                let event = ProcessEvent::ProcessResumed { reason: "to be ended".into(), resumed_by: by };
                at = change(&tx, now.clone(), &at.with_status(open), event).await?;
            }
            let failed = at.with_status(ProcessStatus::Failed);
            change(&tx, now, &failed, ProcessEvent::ProcessFailed { reason }).await
        })
        .await
    }

    /// The processes whose compensation failed, newest first, at most `limit`: a person has to [retry](Self::retry) it or
    /// [end](Self::fail) them.
    pub async fn parked(&self, limit: u32) -> Result<Vec<ProcessInstance>> {
        super::check_limit(limit)?;
        let rows = self.repository.run(Verb::ProcessFindParked, vec![limit.into()]).await?;
        rows.iter().map(rows::process_of).collect()
    }

    /// Waits until a process has ended; `Timeout` if it has not within this time.
    pub async fn ended(&self, id: Uuid, within: Duration) -> Result<ProcessInstance> {
        let until = Instant::now() + within;
        loop {
            let found = self.find_by_id(id).await?.ok_or_else(|| no_such_process(id))?;
            if found.status().is_end() {
                return Ok(found);
            }
            if Instant::now() >= until {
                let text = format!("process {id} is {} after {within:?}", found.status());
                return Err(Error::new(ErrorKind::Timeout, text));
            }
            tokio::time::sleep(POLL.min(until.saturating_duration_since(Instant::now()))).await;
        }
    }

    /// What a person should act on.
    pub(crate) async fn attention(&self) -> Result<Vec<Finding>> {
        let parked = self.parked(ATTENTION_MAX).await?;
        Ok(parked.iter().map(|process| {
            let (id, process_type) = (process.id(), process.process_type());
            let (key, step) = (process.business_key().unwrap_or("-"), process.current_step().unwrap_or("-"));
            Finding {
                check: "compensation_failed",
                problem: format!("process {id}, type {process_type}, key {key}: step {step} could not be undone"),
                remedy: format!(
                    "see `headwater process log {id}`; then `headwater process retry {id}`, or undo it by hand and `headwater process fail {id}`"
                ),
            }
        }).collect())
    }

    /// A reason, and the actor of this handle.
    fn why(&self, reason: &str) -> Result<(String, String)> {
        check_reason(reason)?;
        check_name("actor", self.headwater.actor())?;
        Ok((reason.to_owned(), self.headwater.actor().to_owned()))
    }

    /// Acts on a process that is locked meanwhile, so that no other change comes in between.
    async fn operate<F>(
        &self,
        id: Uuid,
        act: impl FnOnce(Transaction, Value, ProcessInstance, Execution) -> F + Send + 'static,
    ) -> Result<ProcessInstance>
    where
        F: Future<Output = Result<ProcessInstance>> + Send + 'static,
    {
        self.write(move |tx, now| async move {
            let (instance, events) = rows::load(&tx, id).await?.ok_or_else(|| no_such_process(id))?;
            act(tx, now, instance, Execution::of(&events)).await
        })
        .await
    }
}

async fn change(
    tx: &Transaction,
    now: Value,
    instance: &ProcessInstance,
    event: ProcessEvent,
) -> Result<ProcessInstance> {
    instance.check_update(&event)?;
    rows::change(tx, now, instance, &[(instance.change(), event)]).await
}

/// Sends the manager what an operator asks for: on PostgreSQL by a function of the schema, because operators may not publish.
async fn signal(tx: &Transaction, now: Value, process: &ProcessInstance, act: Control) -> Result<()> {
    let message = message::control(process.id(), act)?;
    if !tx.has_roles() {
        return tx.publish(&topic_of(process.process_type())?, message).await.map(drop);
    }
    let (id, payload) = (tx.id_value(Uuid::now_v7()), message.payload.to_vec().into());
    tx.rows_of(Verb::ProcessSignal, vec![tx.id_value(process.id()), id, payload, now]).await.map(drop)
}

fn ended(process: &ProcessInstance) -> Error {
    let text = format!("process {} has ended as {}; nothing was changed", process.id(), process.status());
    Error::new(ErrorKind::InvalidTransition, text)
}
