//! Runs: registered in a topic of the base namespace, each with a namespace of its own for its topics.

use std::sync::Arc;

use headwater::topic::Semantics;
use headwater::{Clock, Headwater, OpenOptions, TopicSettings};
use prost::{Message as _, Name as _};

use crate::bindings::{message_of, type_is};
use crate::contracts::RunInfo;
use crate::error::{Error, ErrorCode, Result};
use crate::resource::{RunDirectory, TopicWriter};

mod directory;
mod drop;
mod open;
mod store;

pub use directory::Directory;
pub use drop::{RunContents, TopicContents};
pub use open::OpenRun;
pub(crate) use store::{InUse, RunStore, RunStores};

/// The topic in which runs are registered.
pub const RUNS_TOPIC: &str = "runs";
/// The state of a run that was dropped: it is listed and followed no more.
pub(crate) const DROPPED: &str = "DROPPED";
/// Connections to the base namespace: it is read now and then.
const CONNECTIONS_MAX: usize = 2;

/// The runs of a base namespace. Cheap to clone.
#[derive(Clone)]
pub struct Runs {
    base: Headwater,
    stores: Arc<RunStores>,
}

impl Runs {
    /// Opens the base namespace, and creates it if it is missing.
    pub async fn open(store: &str) -> Result<Self> {
        Runs::open_with(store, true, Clock::default()).await
    }

    /// Opens a base namespace that exists: a command that only reads must not create one.
    pub async fn open_existing(store: &str) -> Result<Self> {
        Runs::open_with(store, false, Clock::default()).await
    }

    /// The same as [`Runs::open`], with a clock for the namespaces of runs: for tests of leases.
    pub async fn open_with_clock(store: &str, clock: Clock) -> Result<Self> {
        Runs::open_with(store, true, clock).await
    }

    async fn open_with(store: &str, create: bool, clock: Clock) -> Result<Self> {
        let options =
            OpenOptions::default().create(create).auto_create(false).connections_max(CONNECTIONS_MAX);
        let opened = Headwater::open_with(store, options).await;
        let base = opened.map_err(|error| Error::from_store(ErrorCode::ReadFailed, &error))?;
        // Kept for good: the list of runs is read from its beginning.
        let settings = TopicSettings {
            semantics: Semantics::PubSub,
            message_retention: None,
            max_retention: None,
            ..TopicSettings::default()
        };
        let created = base.topic(RUNS_TOPIC).settings(settings).create_if_missing().await;
        created.map_err(|error| Error::from_store(ErrorCode::WriteFailed, &error))?;
        Ok(Runs { base, stores: Arc::new(RunStores::new(store, clock)) })
    }

    /// Registers a run, or its new state: the newest message of a run counts.
    pub async fn register(&self, run: &RunInfo) -> Result<()> {
        if run.run_id.trim().is_empty() {
            return Err(Error::invalid("a run id is blank"));
        }
        let sent = self.base.producer(RUNS_TOPIC).send(message_of(run).key(&run.run_id)).await;
        sent.map(drop).map_err(|error| Error::from_store(ErrorCode::WriteFailed, &error))
    }

    /// All runs, newest first.
    pub async fn list(&self) -> Result<Vec<RunInfo>> {
        self.directory().await?.list().await
    }

    /// One run; refused if it is not registered.
    pub async fn get(&self, run_id: &str) -> Result<RunInfo> {
        let found = self.directory().await?.run(run_id).await?;
        found.ok_or_else(|| Error::invalid(format_args!("no run {run_id:?}; see `headwater pipeline runs`")))
    }

    /// The runs as one service sees them: each service has its own.
    pub async fn directory(&self) -> Result<Directory> {
        Directory::open(&self.base).await
    }

    /// Opens the topics of a run, for programs that bind resources themselves. The process counts as a user of the run until this is closed.
    pub async fn open_run(&self, run: &RunInfo) -> Result<OpenRun> {
        OpenRun::open(&self.stores, run).await
    }

    /// The stores of runs that this process has open.
    pub(crate) fn stores(&self) -> &Arc<RunStores> {
        &self.stores
    }

    /// Closes the base namespace. Stores of runs are closed by those that use them.
    pub async fn close(&self) -> Result<()> {
        self.base.close().await.map_err(|error| Error::from_store(ErrorCode::CloseFailed, &error))
    }
}

#[async_trait::async_trait]
impl TopicWriter<RunInfo> for Runs {
    /// The dedup key is not used: a run may enter a state for a second time, after a restart of its source.
    async fn send(&self, message: &RunInfo, _dedup_key: &str) -> Result<()> {
        self.register(message).await
    }
}

/// The run in a message of the topic.
fn decoded(message: &headwater::Message) -> Result<RunInfo> {
    if !type_is::<RunInfo>(message) {
        let (found, expected) = (message.message_type.as_deref().unwrap_or("none"), RunInfo::full_name());
        let text =
            format!("message {} of topic {RUNS_TOPIC} has type {found}, expected {expected}", message.offset);
        return Err(Error::permanent(ErrorCode::UnknownType, text));
    }
    RunInfo::decode(message.payload.clone()).map_err(|error| {
        Error::permanent(
            ErrorCode::DecodeFailed,
            format!("message {} of topic {RUNS_TOPIC}: {error}", message.offset),
        )
    })
}
