//! The bindings of services to one run.

use std::sync::Arc;

use async_trait::async_trait;

use super::Shared;
use crate::bindings::{BindingHandle, Closing, Metered};
use crate::claim_check::{ClaimCheckSettings, ClaimChecks};
use crate::config::{self, Resource, ServiceConfig, ServiceOptions};
use crate::contracts::RunInfo;
use crate::error::{Error, Result};
use crate::index::{Index, IndexOptions};
use crate::indexer::{EnvironmentIndexer, Indexer, OrganismIndexer};
use crate::resource::{
    Backlog, Bind, BindIndexer, Closer, IdempotencyTracker, IndexerBindings, MetadataIndexerBindings,
    MetadataPersistenceBindings, PersistenceBindings, TickQueueReader, TickQueueWriter, TopicReader,
    TopicWriter,
};
use crate::runs::OpenRun;
use crate::storage::FileStorage;

/// Files that persistence writes at once: so many batches of ticks are in hand.
const FILES_IN_HAND: usize = 2;

/// Binds one service to runs.
#[derive(Clone)]
pub(super) struct Binder {
    shared: Arc<Shared>,
    service: Arc<ServiceConfig>,
}

/// What is open for one run.
pub(super) struct Opened {
    shared: Arc<Shared>,
    service: Arc<ServiceConfig>,
    run: OpenRun,
    closing: Closing,
}

impl Binder {
    pub(super) fn new(shared: &Arc<Shared>, service: &ServiceConfig) -> Self {
        Binder { shared: Arc::clone(shared), service: Arc::new(service.clone()) }
    }

    /// Opens the run and what `open` takes of it. After an error nothing stays open.
    pub(super) async fn with<B>(
        &self,
        run: &RunInfo,
        open: impl AsyncFnOnce(&mut Opened) -> Result<B>,
    ) -> Result<(B, Box<dyn Closer>)> {
        let mut opened = Opened::open(self, run).await?;
        let bound = open(&mut opened).await;
        let Opened { run, mut closing, .. } = opened;
        closing.add_first(format!("run {}", run.run_id()), move || async move { run.close().await });
        let closer = Box::new(closing);
        match bound {
            Ok(bindings) => Ok((bindings, closer)),
            Err(error) => {
                closer.close().await;
                Err(error)
            }
        }
    }
}

impl Opened {
    async fn open(binder: &Binder, run: &RunInfo) -> Result<Self> {
        Ok(Opened {
            shared: Arc::clone(&binder.shared),
            service: Arc::clone(&binder.service),
            run: binder.shared.runs.open_run(run).await?,
            closing: Closing::default(),
        })
    }

    fn config(&self, port: &'static str) -> Result<&config::Binding> {
        let missing =
            || Error::invalid(format_args!("service {}: resources.{port} is missing", self.service.name));
        self.service.bindings.get(port).ok_or_else(missing)
    }

    /// The binding of a port, which serves this run.
    fn binding(&self, port: &'static str) -> Result<Arc<BindingHandle>> {
        self.shared.bindings.bind(&self.service.name, port, self.config(port)?, self.run.run_id())
    }

    fn resource(&self, name: &str) -> Result<&Resource> {
        let found = self.shared.config.resource(name).map(|config| &config.resource);
        found.ok_or_else(|| Error::invalid(format_args!("no resource {name:?}")))
    }

    /// Creates a topic or queue before it is used: a reader that came first would otherwise find none.
    async fn create(&self, name: &str) -> Result<()> {
        match self.resource(name)? {
            Resource::Topic(topic) => self.run.create_topic(name, topic).await,
            Resource::Queue(queue) => self.run.create_queue(name, &queue.delivery).await,
            other => Err(Error::invalid(format_args!("resource {name} is a {}", other.type_name()))),
        }
    }

    pub(super) async fn topic_writer<T>(&self, port: &'static str) -> Result<Arc<dyn TopicWriter<T>>>
    where
        T: prost::Name + 'static,
    {
        let binding = self.binding(port)?;
        self.create(&binding.config().resource).await?;
        Ok(self.run.writer(&binding))
    }

    async fn topic_reader<T>(&self, port: &'static str) -> Result<Arc<dyn TopicReader<T>>>
    where
        T: prost::Name + Default + 'static,
    {
        let binding = self.binding(port)?;
        self.create(&binding.config().resource).await?;
        Ok(self.run.reader(&binding))
    }

    pub(super) async fn tick_writer(&self, port: &'static str) -> Result<Arc<dyn TickQueueWriter>> {
        let binding = self.binding(port)?;
        let queue = &binding.config().resource;
        self.create(queue).await?;
        Ok(self.run.tick_writer(&binding, self.claim_checks(queue)?))
    }

    async fn tick_reader(&self, port: &'static str, batch_size: usize) -> Result<Box<dyn TickQueueReader>> {
        let binding = self.binding(port)?;
        let queue = &binding.config().resource;
        self.create(queue).await?;
        self.run.tick_reader(&binding, batch_size * FILES_IN_HAND, self.claim_checks(queue)?).await
    }

    /// Where payloads of a queue are that are too large for a message: in the first storage.
    fn claim_checks(&self, queue: &str) -> Result<Option<ClaimChecks>> {
        let Resource::Queue(config) = self.resource(queue)? else { return Ok(None) };
        claim_checks(&self.shared, config, self.run.run_id())
    }

    fn storage(&self, port: &'static str) -> Result<Metered<FileStorage>> {
        let binding = self.binding(port)?;
        let name = &binding.config().resource;
        let missing = || Error::invalid(format_args!("storage {name} is not open"));
        let storage = self.shared.storages.get(name).ok_or_else(missing)?.clone();
        Ok(Metered::new(storage, binding))
    }

    /// The index as a port uses it. Handles of one process share the writer of a file.
    fn index(&mut self, port: &'static str) -> Result<Metered<Index>> {
        let binding = self.binding(port)?;
        let index = open_index(&self.shared, &self.service, binding.config(), self.run.run_id())?;
        let closed = index.clone();
        self.closing.add(binding.config().uri.clone(), Some(&binding), move || async move {
            closed.close().await;
            Ok(())
        });
        Ok(Metered::index(&index, binding))
    }

    /// The queue in front of the topic of a port.
    async fn upstream(&self, port: &'static str) -> Result<Option<Arc<dyn Backlog>>> {
        let topic = &self.config(port)?.resource;
        let Some(queue) = self.shared.config.upstream_of(topic) else { return Ok(None) };
        self.create(queue).await?;
        Ok(Some(self.run.backlog(queue)))
    }
}

/// The claim checks of a queue; none without storage.
pub(super) fn claim_checks(
    shared: &Shared,
    config: &config::QueueConfig,
    run_id: &str,
) -> Result<Option<ClaimChecks>> {
    let first = shared.config.resources.iter().find_map(|resource| shared.storages.get(&resource.name));
    let Some(storage) = first.filter(|_| config.claim_check_bytes > 0) else { return Ok(None) };
    let claim_check_bytes = usize::try_from(config.claim_check_bytes).unwrap_or(usize::MAX);
    let settings = ClaimCheckSettings { claim_check_bytes, ..ClaimCheckSettings::default() };
    ClaimChecks::new(storage.clone(), run_id, settings).map(Some)
}

/// Opens an index with the options of the service that uses it. Connects to nothing yet.
fn open_index(
    shared: &Shared,
    service: &ServiceConfig,
    binding: &config::Binding,
    run_id: &str,
) -> Result<Index> {
    let Some(Resource::Index(index)) =
        shared.config.resource(&binding.resource).map(|config| &config.resource)
    else {
        return Err(Error::invalid(format_args!("resource {} is no index", binding.resource)));
    };
    let mut options = IndexOptions {
        strategies: shared.strategies.clone(),
        connections_max: binding.values.connections_max,
        connections_idle_min: binding.values.connections_idle_min,
        ..IndexOptions::default()
    };
    if let ServiceOptions::Environment(_, environment) = &service.options {
        options.strategy.clone_from(&environment.strategy);
        options.tile_size = environment.tile_size;
        options.recompress = environment.compression;
        options.partition_ticks = environment.partition_ticks;
    }
    Index::open(&index.url, run_id, &options)
}

#[async_trait]
impl Bind<PersistenceBindings> for Binder {
    async fn bind(&self, run: &RunInfo) -> Result<PersistenceBindings> {
        let ServiceOptions::Persistence(options) = &self.service.options else {
            return Err(Error::invalid(format_args!("service {} is no persistence", self.service.name)));
        };
        let open = async |opened: &mut Opened| {
            let storage = Arc::new(opened.storage("storage")?);
            let announcements = opened.topic_writer("batches").await?;
            // Last: it begins to claim.
            let ticks = opened.tick_reader("ticks", options.batch_size).await?;
            Ok((ticks, storage, announcements))
        };
        let ((ticks, storage, announcements), closer) = self.with(run, open).await?;
        Ok(PersistenceBindings { ticks, storage, announcements, closer })
    }
}

#[async_trait]
impl Bind<MetadataPersistenceBindings> for Binder {
    async fn bind(&self, run: &RunInfo) -> Result<MetadataPersistenceBindings> {
        let open = async |opened: &mut Opened| {
            let storage = Arc::new(opened.storage("storage")?);
            let announcements = opened.topic_writer("announcements").await?;
            let metadata = opened.topic_reader("metadata").await?;
            Ok((metadata, storage, announcements))
        };
        let ((metadata, storage, announcements), closer) = self.with(run, open).await?;
        Ok(MetadataPersistenceBindings { metadata, storage, announcements, closer })
    }
}

#[async_trait]
impl Bind<MetadataIndexerBindings> for Binder {
    async fn bind(&self, run: &RunInfo) -> Result<MetadataIndexerBindings> {
        let open = async |opened: &mut Opened| {
            let storage = Arc::new(opened.storage("storage")?);
            let index = Arc::new(opened.index("index")?);
            let upstream = opened.upstream("announcements").await?;
            let announcements = opened.topic_reader("announcements").await?;
            Ok((announcements, storage, index, upstream))
        };
        let ((announcements, storage, index, upstream), closer) = self.with(run, open).await?;
        Ok(MetadataIndexerBindings { announcements, storage, index, upstream, closer })
    }
}

/// How the indexer of a run is made.
type Make = Box<dyn Fn(&mut Opened) -> Result<Arc<dyn Indexer>> + Send + Sync>;

/// Binds a batch indexer of any kind.
pub(super) struct EveryIndexer {
    binder: Binder,
    make: Make,
}

impl EveryIndexer {
    pub(super) fn environment(binder: Binder) -> Self {
        let make = |opened: &mut Opened| {
            let indexer: Arc<dyn Indexer> =
                Arc::new(EnvironmentIndexer::new(Arc::new(opened.index("index")?)));
            Ok(indexer)
        };
        EveryIndexer { binder, make: Box::new(make) }
    }

    pub(super) fn organism(binder: Binder) -> Self {
        let make = |opened: &mut Opened| {
            let indexer: Arc<dyn Indexer> = Arc::new(OrganismIndexer::new(Arc::new(opened.index("index")?)));
            Ok(indexer)
        };
        EveryIndexer { binder, make: Box::new(make) }
    }

    /// One indexer for all runs.
    pub(super) fn of(binder: Binder, indexer: Arc<dyn Indexer>) -> Self {
        EveryIndexer { binder, make: Box::new(move |_| Ok(Arc::clone(&indexer))) }
    }
}

#[async_trait]
impl BindIndexer for EveryIndexer {
    async fn bind(&self, run: &RunInfo) -> Result<IndexerBindings> {
        let open = async |opened: &mut Opened| {
            let indexer = (self.make)(opened)?;
            let storage = Arc::new(opened.storage("storage")?);
            let metadata = Arc::new(opened.index("metadata")?);
            let tracker: Option<Arc<dyn IdempotencyTracker>> =
                match opened.service.bindings.contains_key("idempotency") {
                    true => Some(Arc::new(opened.index("idempotency")?)),
                    false => None,
                };
            let upstream = opened.upstream("batches").await?;
            let batches = opened.topic_reader("batches").await?;
            Ok((indexer, storage, metadata, tracker, upstream, batches))
        };
        let ((indexer, storage, metadata, tracker, upstream, batches), closer) =
            self.binder.with(run, open).await?;
        let group = self.binder.service.bindings.get("batches").and_then(|binding| binding.group.clone());
        let group = group.unwrap_or_default();
        Ok(IndexerBindings { indexer, batches, group, storage, metadata, tracker, upstream, closer })
    }
}
