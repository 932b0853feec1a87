//! Processes (sagas): what spans several steps, each of which may fail, and is undone if it cannot be finished.
//!
//! [`Processes`] is their repository: a row for each process and a log of everything that happened to it, usable inside the
//! caller's own transaction. Every change is one update with one event: both are stored, or neither.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
//! # let headwater = headwater::Headwater::in_memory().await?;
//! use headwater::process::{ProcessEvent, ProcessInstance, ProcessStatus};
//!
//! let processes = headwater.processes();
//! let order = ProcessInstance::create("order", Some("o-17"), None);
//! let order = processes.insert(&order, &order.started()).await?;
//!
//! let event = ProcessEvent::StepStarted { step: "reserve".into(), command_id: "c-1".into() };
//! let running = order.with_status(ProcessStatus::Running).with_current_step("reserve");
//! let running = processes.update(&running, &event).await?;
//! assert_eq!(running.version(), 2);
//!
//! // A copy that was read before: nothing is written.
//! let stale = processes.update(&order.with_status(ProcessStatus::Paused), &event).await.unwrap_err();
//! assert_eq!(stale.kind(), headwater::ErrorKind::Conflict);
//! assert_eq!(processes.find_by_business_key("order", "o-17").await?.as_ref(), Some(&running));
//! assert_eq!(processes.replay(order.id()).await?, Some(running));
//! # headwater.close().await }
//! ```

use uuid::Uuid;

use crate::Headwater;
use crate::error::{Error, Result};
use crate::limits::PROCESSES_LISTED_MAX;
use crate::name::check_name;
use crate::repository::Repository;
use crate::store::repository::Verb;
use crate::transaction::{Transaction, Value};

mod command;
mod data;
mod definition;
mod event;
mod execution;
mod find;
mod instance;
mod log;
mod manager;
mod message;
mod operate;
mod plan;
pub(crate) mod rows;
mod status;
mod turn;

pub use command::{Commands, StepError};
pub use data::ProcessData;
pub use definition::{Path, ProcessType, Step};
pub use event::ProcessEvent;
pub use find::{ProcessPlace, ProcessSelection};
pub use instance::{ProcessChange, ProcessInstance};
pub use log::ProcessLogEntry;
pub use message::Command;
pub use operate::{StartProcess, Started};
pub use status::ProcessStatus;

/// The processes of a namespace. Cheap to clone.
///
/// Each call is a transaction of its own, unless the repository is [within](Self::within) one.
#[derive(Clone, Debug)]
pub struct Processes {
    headwater: Headwater,
    repository: Repository,
}

impl Headwater {
    /// The processes (sagas): insert, find, update, log, replay.
    pub fn processes(&self) -> Processes {
        Processes { headwater: self.clone(), repository: Repository::new(self.store()) }
    }
}

impl Processes {
    /// The same processes inside a transaction: what is written commits with it, and what is read sees it. A transaction of
    /// another store is refused.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// # headwater.topic("orders").create().await?;
    /// use headwater::process::ProcessInstance;
    /// use headwater::transaction::Transaction;
    ///
    /// let processes = headwater.processes();
    /// let order = ProcessInstance::create("order", Some("o-17"), None);
    /// let inserted: headwater::Result<ProcessInstance> = headwater
    ///     .transaction(move |tx: Transaction| async move {
    ///         tx.publish("orders", &17).await?;
    ///         processes.within(&tx).insert(&order, &order.started()).await
    ///     })
    ///     .await;
    /// assert_eq!(inserted?.version(), 1);
    /// # headwater.close().await }
    /// ```
    #[must_use]
    pub fn within(&self, transaction: &Transaction) -> Self {
        Processes { headwater: self.headwater.clone(), repository: self.repository.within(transaction) }
    }

    /// Inserts a new process with its first event, [`ProcessInstance::started`], and returns it as it is stored. `Conflict`
    /// if its id is known: nothing is written.
    pub async fn insert(&self, instance: &ProcessInstance, event: &ProcessEvent) -> Result<ProcessInstance> {
        instance.check_new(event)?;
        let (instance, event) = (instance.clone(), event.clone());
        self.write(move |tx, now| async move { rows::insert(&tx, now, &instance, &event).await }).await
    }

    /// Stores a changed copy with the event that changed it, and returns it as it is stored.
    ///
    /// `Conflict` if the process was changed since the copy was read, `NoSuchProcess` if it is unknown, `InvalidTransition`
    /// if its status does not allow it (see [`ProcessStatus::may_become`]). In each case nothing is written.
    pub async fn update(&self, instance: &ProcessInstance, event: &ProcessEvent) -> Result<ProcessInstance> {
        instance.check_update(event)?;
        let (instance, event) = (instance.clone(), event.clone());
        self.write(move |tx, now| async move {
            rows::change(&tx, now, &instance, &[(instance.change(), event)]).await
        })
        .await
    }

    /// The process of this id; `None` if there is none.
    pub async fn find_by_id(&self, id: Uuid) -> Result<Option<ProcessInstance>> {
        let rows = self.repository.run(Verb::ProcessFindById, vec![self.id(id)]).await?;
        rows.first().map(rows::process_of).transpose()
    }

    /// The processes of a status, newest first, at most `limit` (1 to 10,000).
    pub async fn find_by_status(&self, status: ProcessStatus, limit: u32) -> Result<Vec<ProcessInstance>> {
        check_limit(limit)?;
        let rows = self
            .repository
            .run(Verb::ProcessFindByStatus, vec![status.as_str().into(), limit.into()])
            .await?;
        rows.iter().map(rows::process_of).collect()
    }

    /// The processes of a type and a status, newest first, at most `limit` (1 to 10,000).
    pub async fn find_by_type_and_status(
        &self,
        process_type: &str,
        status: ProcessStatus,
        limit: u32,
    ) -> Result<Vec<ProcessInstance>> {
        check_name("process_type", process_type)?;
        check_limit(limit)?;
        let params = vec![process_type.into(), status.as_str().into(), limit.into()];
        let rows = self.repository.run(Verb::ProcessFindByTypeAndStatus, params).await?;
        rows.iter().map(rows::process_of).collect()
    }

    /// The process of a type and exactly this business key, the newest if there are several; `None` if there is none.
    pub async fn find_by_business_key(
        &self,
        process_type: &str,
        business_key: &str,
    ) -> Result<Option<ProcessInstance>> {
        check_name("process_type", process_type)?;
        check_name("business_key", business_key)?;
        let params = vec![process_type.into(), business_key.into()];
        let rows = self.repository.run(Verb::ProcessFindByBusinessKey, params).await?;
        rows.first().map(rows::process_of).transpose()
    }

    /// The log of a process, newest first: the newest `limit` entries, or all with `None`. Empty for an unknown process.
    pub async fn log(&self, id: Uuid, limit: impl Into<Option<u32>>) -> Result<Vec<ProcessLogEntry>> {
        let limit: Option<u32> = limit.into();
        let params = vec![self.id(id), limit.map_or(i64::MAX, i64::from).into()];
        let rows = self.repository.run(Verb::ProcessLog, params).await?;
        rows.iter().map(rows::entry_of).collect()
    }

    /// The process as its log makes it, from nothing else; `None` for an unknown process. It equals what
    /// [`find_by_id`](Self::find_by_id) returns.
    pub async fn replay(&self, id: Uuid) -> Result<Option<ProcessInstance>> {
        let mut entries = self.log(id, None).await?;
        entries.reverse();
        if entries.is_empty() { Ok(None) } else { ProcessInstance::replay(&entries).map(Some) }
    }

    /// Writes in the transaction it is within, or in one of its own.
    async fn write<T, F>(&self, work: impl FnOnce(Transaction, Value) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        if let Some(tx) = self.repository.transaction() {
            let now = tx.time_of(Some(&self.repository.store)).await?;
            return work(tx.clone(), now).await;
        }
        self.headwater
            .transaction(move |tx: Transaction| async move {
                let now = tx.time_of(None).await?;
                work(tx, now).await
            })
            .await
    }

    /// An id as a parameter.
    fn id(&self, id: Uuid) -> Value {
        rows::id_value(id, self.headwater.store().engine() == "sqlite")
    }
}

fn check_limit(limit: u32) -> Result<()> {
    if limit == 0 || limit > PROCESSES_LISTED_MAX {
        return Err(Error::invalid("limit", format!("{limit} must be from 1 to {PROCESSES_LISTED_MAX}")));
    }
    Ok(())
}
