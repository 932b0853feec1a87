//! The handle a program holds: opens a store, makes topics, producers and consumers.

use std::sync::{Arc, Mutex};

use crate::clock::Clock;
use crate::consumer::ConsumerBuilder;
use crate::consumer::runtime::{Runtime, SILENT_FOR};
use crate::cron::{CronBuilder, StoreTicks};
use crate::dead_letter::{self, DeadLetters};
use crate::error::Result;
use crate::groups::Groups;
use crate::lease::OffsetRange;
use crate::lease_thread::LeaseThread;
use crate::maintain::{Maintenance, MaintenancePreset};
use crate::message::{Message, Offset};
use crate::name::{GroupName, TopicName};
use crate::observe::metrics::Registry;
use crate::publish::Producer;
use crate::store::{self, OpenOptions, Store};
use crate::topic::{Topic, TopicSettings};

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
    /// How the upkeep is done while consumers run; not at all without.
    maintenance: Option<MaintenancePreset>,
    /// What running consumers share; there once the first one runs.
    runtime: Arc<Mutex<Option<Arc<Runtime>>>>,
}

impl Headwater {
    /// Opens a store: `sqlite:path`, `sqlite::memory:` or `postgres://…`, each with an optional `?namespace=`.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, OpenOptions::default()).await
    }

    /// Opens an embedded store in memory, gone with the handle: for tests.
    #[cfg(feature = "sqlite")]
    pub async fn in_memory() -> Result<Self> {
        Self::open("sqlite::memory:").await
    }

    /// Opens a store with options.
    pub async fn open_with(url: &str, options: OpenOptions) -> Result<Self> {
        let metrics = Arc::new(Registry::new(options.health_window));
        let clock = options.clock.clone();
        // With a clock moved by hand nothing moves by itself.
        let maintenance = options.maintenance.filter(|_| clock.injected().is_none());
        let store = store::open(url, options).await?;
        Ok(Headwater { store, metrics, clock, maintenance, runtime: Arc::default() })
    }

    /// The store below, for what this handle does not wrap.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Describes a topic to create.
    pub fn topic(&self, name: &str) -> TopicBuilder {
        TopicBuilder::new(Arc::clone(&self.store), name)
    }

    /// Changes a topic's settings while messages flow; what cannot be changed then is in
    /// [`Lifecycle::alter_topic`](store::Lifecycle::alter_topic).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # use std::time::Duration;
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// use headwater::TopicSettings;
    /// let topic = headwater.topic("orders").create().await?;
    /// let longer = TopicSettings { message_retention: Some(Duration::from_secs(7 * 86_400)), ..topic.settings };
    /// let topic = headwater.alter_topic("orders", &longer).await?;
    /// assert_eq!(topic.settings, longer);
    /// # headwater.close().await }
    /// ```
    pub async fn alter_topic(&self, name: &str, settings: &TopicSettings) -> Result<Topic> {
        self.store.alter_topic(&TopicName::new(name)?, settings).await
    }

    /// The groups of a topic: how they are, pause, resume, cancel, remove, resurrect, move.
    pub fn groups(&self, topic: &str) -> Groups {
        Groups::new(Arc::clone(&self.store), self.clock.clone(), topic)
    }

    /// A producer for a topic: groups concurrent sends into few statements.
    pub fn producer(&self, topic: &str) -> Producer {
        Producer::new(Arc::clone(&self.store), topic, &self.metrics)
    }

    /// Describes a consumer of a group on a topic.
    pub fn consumer(&self, topic: &str, group: &str) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone(), topic, group)
    }

    /// Describes a periodic message: a cron expression, published once per tick whichever process is up.
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
    pub fn cron(&self, job: &str, expression: &str) -> CronBuilder {
        let ticks = Arc::new(StoreTicks(Arc::clone(&self.store)));
        CronBuilder::new(ticks, self.clock.clone(), Arc::clone(&self.metrics), job, expression)
    }

    /// The jobs of upkeep: deaths, retention, records, partitions, backfills. A process that runs consumers runs
    /// them too, unless it was opened with [`OpenOptions::maintenance`] off; this is for running them by hand, or in a
    /// process of their own.
    pub fn maintenance(&self) -> Maintenance {
        Maintenance::new(Arc::clone(&self.store))
    }

    pub(crate) fn metrics(&self) -> &Registry {
        &self.metrics
    }

    /// What running consumers of this handle and its clones share.
    pub(crate) fn runtime(&self) -> Result<Arc<Runtime>> {
        let mut runtime = self.runtime.lock().expect("no panic while held");
        // One whose tokio runtime was shut down serves no group any more.
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

    /// What its consumers share from now on, for tests.
    #[cfg(all(test, feature = "sqlite"))]
    pub(crate) fn set_runtime(&self, runtime: Arc<Runtime>) {
        *self.runtime.lock().expect("no panic while held") = Some(runtime);
    }

    /// Everything published to a topic so far that is still stored, offsets rising: for tests and for looking.
    pub async fn published(&self, topic: &str) -> Result<Vec<Message>> {
        let topic = self.store.topic(&TopicName::new(topic)?).await?;
        self.store.maintain().await?;
        let topics = self.store.topics().await?;
        let head = topics
            .iter()
            .find(|status| status.topic.topic_id == topic.topic_id)
            .map_or(0, |status| status.head.0);
        let mut messages = Vec::new();
        for first in (1..=head).step_by(1_000) {
            let page = OffsetRange::new(Offset(first), Offset(head.min(first + 999)));
            messages.extend(self.store.fetch(topic.topic_id, page).await?);
        }
        Ok(messages)
    }

    /// The dead letters of a group: list, show, redrive, purge.
    pub fn dead_letters(&self, topic: &str, group: &str) -> DeadLetters {
        DeadLetters::new(Arc::clone(&self.store), topic, group)
    }

    /// How many dead letters each group of a topic has, by group.
    pub async fn dead_letter_counts(&self, topic: &str) -> Result<Vec<(GroupName, u64)>> {
        dead_letter::counts(self.store.as_ref(), &TopicName::new(topic)?).await
    }

    /// Stops background work and lets go of connections.
    pub async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}
