//! The topics of one run, as services and programs use them.

use std::sync::Arc;

use headwater::{Headwater, Start, TopicSettings};

use super::store::{InUse, RunStores};
use crate::bindings::{
    BindingHandle, QUEUE_GROUP, QueueBacklog, TickReceiver, TickSender, TopicReceiver, TopicSender,
};
use crate::claim_check::ClaimChecks;
use crate::config::TopicConfig;
use crate::contracts::RunInfo;
use crate::error::{Error, ErrorCode, Result};
use crate::resource::{Backlog, TickQueueReader, TickQueueWriter, TopicReader, TopicWriter};

/// A run that is open. To be closed: dropped it counts as used until the process ends.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater_pipeline::Result<()> {
/// # let directory = tempfile::tempdir().expect("a directory");
/// use headwater_pipeline::bindings::Bindings;
/// use headwater_pipeline::config::TopicConfig;
/// use headwater_pipeline::contracts::{BatchInfo, RunInfo};
/// use headwater_pipeline::runs::Runs;
/// use headwater_pipeline::{Config, RunId};
///
/// let config = Config::default_embedded(directory.path(), None)?;
/// let runs = Runs::open(&config.store).await?;
/// let id = RunId::generate().to_string();
/// let run = RunInfo { run_id: id.clone(), namespace: id, state: "RUNNING".into(), ..RunInfo::default() };
/// runs.register(&run).await?;
///
/// let open = runs.open_run(&run).await?;
/// open.create_topic("batch-topic", &TopicConfig::topic()).await?;
/// let uri = config.binding("topic-write:batch-topic")?;
/// let binding = Bindings::default().bind("program", "batches", &uri, &run.run_id)?;
/// open.writer(&binding).send(&BatchInfo::default(), "first").await?;
/// assert_eq!(binding.health().snapshot().counts.messages_sent, 1);
/// open.close().await?;
/// runs.close().await
/// # }
/// ```
pub struct OpenRun {
    stores: Arc<RunStores>,
    used: InUse,
}

impl OpenRun {
    pub(super) async fn open(stores: &Arc<RunStores>, run: &RunInfo) -> Result<Self> {
        Ok(OpenRun { stores: Arc::clone(stores), used: stores.acquire(run).await? })
    }

    /// The id of the run.
    pub fn run_id(&self) -> &str {
        &self.used.0.run_id
    }

    /// The run's namespace.
    pub fn headwater(&self) -> &Headwater {
        &self.used.0.headwater
    }

    /// Creates a topic before it is read or written.
    pub async fn create_topic(&self, topic: &str, config: &TopicConfig) -> Result<()> {
        self.create(topic, config.topic_settings()).await
    }

    /// Creates a queue and subscribes its group: its lag is known from then on.
    pub async fn create_queue(&self, queue: &str, config: &TopicConfig) -> Result<()> {
        self.create(queue, config.queue_settings()).await?;
        let subscribed = self.headwater().groups(queue).subscribe(QUEUE_GROUP, Start::Beginning).await;
        subscribed.map(drop).map_err(|error| Error::from_store(ErrorCode::WriteFailed, &error))
    }

    async fn create(&self, topic: &str, settings: TopicSettings) -> Result<()> {
        let created = self.headwater().topic(topic).settings(settings).create_if_missing().await;
        created.map(drop).map_err(|error| Error::from_store(ErrorCode::WriteFailed, &error))
    }

    /// Publishes messages of one type to the topic or queue of a binding.
    pub fn writer<T: prost::Name + 'static>(&self, binding: &Arc<BindingHandle>) -> Arc<dyn TopicWriter<T>> {
        Arc::new(TopicSender::new(self.headwater(), &binding.config().resource, Arc::clone(binding)))
    }

    /// Reads messages of one type from the topic or queue of a binding.
    pub fn reader<T: prost::Name + Default + 'static>(
        &self,
        binding: &Arc<BindingHandle>,
    ) -> Arc<dyn TopicReader<T>> {
        let config = binding.config();
        let group = config.group.as_deref().unwrap_or(QUEUE_GROUP);
        Arc::new(TopicReceiver::new(&self.used.0, &config.resource, group, Arc::clone(binding)))
    }

    /// Puts ticks into the queue of a binding; payloads that are too large for a message go to `checks`.
    pub fn tick_writer(
        &self,
        binding: &Arc<BindingHandle>,
        checks: Option<ClaimChecks>,
    ) -> Arc<dyn TickQueueWriter> {
        Arc::new(TickSender::new(self.headwater(), &binding.config().resource, checks, Arc::clone(binding)))
    }

    /// Takes ticks from the queue of a binding; up to `ticks_max` are in hand at a time.
    pub async fn tick_reader(
        &self,
        binding: &Arc<BindingHandle>,
        ticks_max: usize,
        checks: Option<ClaimChecks>,
    ) -> Result<Box<dyn TickQueueReader>> {
        let queue = binding.config().resource.clone();
        let reader = TickReceiver::open(&self.used.0, &queue, ticks_max, checks, Arc::clone(binding)).await?;
        Ok(Box::new(reader))
    }

    /// What is in a queue.
    pub fn backlog(&self, queue: &str) -> Arc<dyn Backlog> {
        Arc::new(QueueBacklog::new(self.headwater(), queue))
    }

    /// Ends its use. The last one of the process closes the namespace.
    pub async fn close(self) -> Result<()> {
        self.stores.release(self.used).await
    }
}
