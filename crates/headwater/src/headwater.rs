//! The handle a program holds: opens a store, makes topics, producers and consumers.

use std::sync::{Arc, Mutex};

use crate::backfill::Backfill;
use crate::clock::Clock;
use crate::consumer::ConsumerBuilder;
use crate::consumer::runtime::{Runtime, SILENT_FOR};
#[cfg(feature = "cron")]
use crate::cron::CronBuilder;
use crate::dead_letter::DeadLetters;
use crate::error::Result;
use crate::groups::Groups;
use crate::lease::{LeaseToken, OffsetRange};
use crate::lease_thread::LeaseThread;
use crate::maintenance::{Maintenance, MaintenancePreset};
use crate::message::{Message, Offset};
use crate::observe::metrics::Registry;
use crate::publish::Producer;
use crate::store::{self, AuditEntry, Finding, OpenOptions, Store};
use crate::topic::TopicStatus;
use crate::topics::Topics;

mod builder;

pub use builder::TopicBuilder;

/// A namespace of topics in a database. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use std::time::Duration;
/// use headwater::{Headwater, NewMessage};
///
/// let headwater = Headwater::open("sqlite::memory:").await?;
/// headwater.producer("orders").send(NewMessage::new("first")).await?;
///
/// let mut consumer = headwater.consumer("orders", "email").open().await?;
/// let batch = consumer.next(Duration::from_secs(1)).await?.expect("one message waits");
/// assert_eq!(batch.messages()[0].payload, "first");
/// batch.ack().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Headwater {
    store: Arc<dyn Store>,
    metrics: Arc<Registry>,
    clock: Clock,
    /// How maintenance runs while consumers run; `None` for not at all.
    maintenance: Option<MaintenancePreset>,
    /// What running consumers share; made when the first one runs.
    runtime: Arc<Mutex<Option<Arc<Runtime>>>>,
}

impl Headwater {
    /// Opens a store: `sqlite:path`, `sqlite::memory:` or `postgres://…`, each with an optional `?namespace=`.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, OpenOptions::default()).await
    }

    /// Opens an embedded store in memory, dropped with the handle: for tests.
    #[cfg(feature = "sqlite")]
    pub async fn in_memory() -> Result<Self> {
        Self::open("sqlite::memory:").await
    }

    /// Opens a store with options.
    pub async fn open_with(url: &str, options: OpenOptions) -> Result<Self> {
        let metrics = Arc::new(Registry::new(options.health_window));
        let clock = options.clock.clone();
        // With a manual clock nothing runs by itself.
        let maintenance = options.maintenance.filter(|_| clock.injected().is_none());
        let store = store::open(url, options).await?;
        Ok(Headwater { store, metrics, clock, maintenance, runtime: Arc::default() })
    }

    /// The store of this handle, for authors of engines and tests. Programs and operators find all they need on the
    /// handle.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Describes a topic to create.
    pub fn topic(&self, name: &str) -> TopicBuilder {
        TopicBuilder::new(Arc::clone(&self.store), name)
    }

    /// The topics: list, progress and settings.
    pub fn topics(&self) -> Topics {
        Topics::new(Arc::clone(&self.store))
    }

    /// The groups of a topic: status, pause, resume, cancel, remove, resurrect, seek.
    pub fn groups(&self, topic: &str) -> Groups {
        Groups::new(Arc::clone(&self.store), self.clock.clone(), topic)
    }

    /// A producer for a topic: combines concurrent sends into few statements.
    pub fn producer(&self, topic: &str) -> Producer {
        Producer::new(Arc::clone(&self.store), topic, &self.metrics)
    }

    /// Describes a consumer of a group on a topic.
    pub fn consumer(&self, topic: &str, group: &str) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone(), topic, group)
    }

    /// Describes a cron job: a message published once per tick, whichever processes run.
    ///
    /// ```no_run
    /// # async fn start(headwater: headwater::Headwater) -> headwater::Result<()> {
    /// let job = headwater
    ///     .cron("nightly-report", "0 2 * * *")
    ///     .time_zone("Europe/Berlin")
    ///     .topic("reports")
    ///     .message(&serde_json::json!({ "kind": "nightly" }))
    ///     .start()
    ///     .await?;
    /// job.stop().await;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "cron")]
    pub fn cron(&self, job: &str, expression: &str) -> CronBuilder {
        CronBuilder::new(
            Arc::clone(&self.store) as _,
            self.clock.clone(),
            Arc::clone(&self.metrics),
            job,
            expression,
        )
    }

    /// The maintenance jobs: heads, tracking, detection of dead groups, cleanup, partitions, backfills. A process that
    /// runs consumers runs them too, unless it was opened with [`OpenOptions::maintenance`] off; this handle runs them
    /// by hand, or in a process of their own.
    pub fn maintenance(&self) -> Maintenance {
        Maintenance::new(Arc::clone(&self.store) as _)
    }

    pub(crate) fn metrics(&self) -> &Registry {
        &self.metrics
    }

    /// What running consumers of this handle and its clones share.
    pub(crate) fn runtime(&self) -> Result<Arc<Runtime>> {
        let mut runtime = self.runtime.lock().expect("no panic while held");
        // A runtime whose tokio runtime was shut down serves no group any more.
        match runtime.as_ref().filter(|runtime| !runtime.settler.is_gone()) {
            Some(runtime) => Ok(Arc::clone(runtime)),
            None => {
                let (store, owner) = (Arc::clone(&self.store), Runtime::new_owner()?);
                let thread = LeaseThread::shared()?;
                let started = Runtime::start(thread, store, owner, Some(SILENT_FOR), self.maintenance);
                *runtime = Some(Arc::clone(&started));
                Ok(started)
            }
        }
    }

    /// Replaces what its consumers share, for tests.
    #[cfg(all(test, feature = "sqlite"))]
    pub(crate) fn set_runtime(&self, runtime: Arc<Runtime>) {
        *self.runtime.lock().expect("no panic while held") = Some(runtime);
    }

    /// Everything published to a topic so far that is still stored, offsets rising: for tests and inspection.
    pub async fn published(&self, topic: &str) -> Result<Vec<Message>> {
        let topics = self.topics();
        topics.advance_heads().await?;
        let TopicStatus { topic, head, .. } = topics.status(topic).await?;
        let mut messages = Vec::new();
        for first in (1..=head.0).step_by(1_000) {
            let page = OffsetRange::new(Offset(first), Offset(head.0.min(first + 999)));
            messages.extend(self.store.fetch(topic.topic_id, page).await?);
        }
        Ok(messages)
    }

    /// The dead letters of a group: list, show, redrive, purge.
    pub fn dead_letters(&self, topic: &str, group: &str) -> DeadLetters {
        DeadLetters::new(Arc::clone(&self.store), topic, group)
    }

    /// The backfills of all topics, newest first.
    pub async fn backfills(&self) -> Result<Vec<Backfill>> {
        self.store.backfills().await
    }

    /// Ends a lease by hand, whichever process holds it: its messages are handed out again at once, and no attempt is
    /// counted. Tokens are in [`Groups::outstanding`]. `LeaseLost` if no lease has that token.
    pub async fn release_lease(&self, token: LeaseToken) -> Result<()> {
        self.store.release_lease(token).await
    }

    /// The changes that operators made, newest first, at most `limit`.
    pub async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>> {
        self.store.audit(limit).await
    }

    /// Checks the invariants of everything stored. An empty result means that the store is sound.
    pub async fn doctor(&self) -> Result<Vec<Finding>> {
        self.store.doctor().await
    }

    /// Settings of the database server that weaken durability: less survives a crash than is promised. They are not
    /// errors of the store, and so not among the findings of [`Headwater::doctor`]. None on SQLite.
    pub async fn durability(&self) -> Result<Vec<Finding>> {
        #[cfg(feature = "postgres")]
        if let Some(postgres) = self.store.as_postgres() {
            return postgres.durability().await;
        }
        Ok(Vec::new())
    }

    /// Stops background work and closes the connections.
    pub async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}
