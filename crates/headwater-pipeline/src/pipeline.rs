//! A pipeline from its configuration: services are built, bound to their resources and started in order.
//!
//! ```no_run
//! # async fn run() -> headwater_pipeline::Result<()> {
//! use headwater_pipeline::{Config, Pipeline};
//!
//! let config = Config::default_embedded("tides".as_ref(), Some(10_000))?;
//! let pipeline = Pipeline::from_config(config).start().await?;
//! pipeline.finished().await?; // all ticks made, written and indexed
//! pipeline.stop().await?;
//! # Ok(()) }
//! ```

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::bindings::Bindings;
use crate::config::{Config, Resource, ServiceConfig, ServiceOptions};
use crate::contracts::RunInfo;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::index::{StorageStrategy, Strategies, StrategySettings};
use crate::indexer::{BatchIndexer, DummyIndexer, Indexer, MetadataIndexer};
use crate::manager::{Action, Manager, ServiceState, ServiceStatus};
use crate::persistence::{MetadataPersistence, Persistence};
use crate::runs::{InUse, Runs};
use crate::service::Service;
use crate::storage::FileStorage;

mod bind;
mod lock;
mod operate;
mod progress;
mod query;
mod source;
mod sweep;

pub use operate::Operator;
pub use progress::{Lag, Progress};

use bind::{Binder, EveryIndexer};
use lock::SourceLocks;
use progress::Counting;
use query::QueryService;
use source::RunSource;
use sweep::Sweeping;

/// How long a pipeline that stops waits for a service that opens or closes a store.
const HOLD_WAIT: Duration = Duration::from_secs(2);

/// A pipeline to be started.
pub struct Pipeline {
    config: Config,
    strategies: Strategies,
    indexers: Indexers,
}

/// Indexers of the program's own, by name.
type Indexers = BTreeMap<String, Arc<dyn Indexer>>;

/// What the services of a process share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) runs: Runs,
    pub(crate) bindings: Arc<Bindings>,
    pub(crate) storages: HashMap<String, FileStorage>,
    pub(crate) strategies: Strategies,
}

impl Pipeline {
    /// The pipeline of a configuration.
    pub fn from_config(config: Config) -> Self {
        Pipeline { config, strategies: Strategies::default(), indexers: Indexers::default() }
    }

    /// Registers a strategy for storing cells, which the configuration then names: `strategy = "mine"`.
    #[must_use]
    pub fn strategy(
        mut self,
        name: &str,
        create: impl Fn(&StrategySettings) -> Result<Arc<dyn StorageStrategy>> + Send + Sync + 'static,
    ) -> Self {
        self.strategies = self.strategies.with(name, create);
        self
    }

    /// Registers an indexer, which services of type `indexer` then name: `indexer = "mine"`. It serves all their runs.
    #[must_use]
    pub fn indexer(mut self, name: &str, indexer: Arc<dyn Indexer>) -> Self {
        self.indexers.insert(name.to_owned(), indexer);
        self
    }

    /// Refuses names that are not registered, where the configuration has them.
    fn check_names(&self) -> Result<()> {
        for service in &self.config.services {
            match &service.options {
                ServiceOptions::Environment(_, options) => {
                    let checked = self.strategies.check(&options.strategy);
                    checked.map_err(|error| options.strategy_place.refuse(error))?;
                }
                ServiceOptions::Own(_, own) if !self.indexers.contains_key(&own.name) => {
                    let known: Vec<&str> = self.indexers.keys().map(String::as_str).collect();
                    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                    return Err(own
                        .place
                        .refuse(format_args!("no indexer {:?}; this program has {known}", own.name)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Starts all services, or none: everything that can be refused is refused before the first one starts.
    pub async fn start(self) -> Result<RunningPipeline> {
        self.check_names()?;
        let Pipeline { config, strategies, indexers } = self;
        if config.services.is_empty() {
            return Err(Error::invalid("no service is configured; expected [services.NAME] with a type"));
        }
        let locks = SourceLocks::acquire(&config)?;
        let storages = open_storages(&config).await?;
        let runs = Runs::open(&config.store).await?;
        let shared = Arc::new(Shared { config, runs, bindings: Arc::default(), storages, strategies });
        match RunningPipeline::build(&shared, &indexers).await {
            Ok(mut pipeline) => {
                pipeline.manager.act_on_all(Action::Start).await?;
                pipeline.sweeping = Sweeping::start(&shared);
                pipeline.locks = Some(locks);
                Ok(pipeline)
            }
            Err(error) => {
                let _ = shared.runs.close().await;
                Err(error)
            }
        }
    }
}

async fn open_storages(config: &Config) -> Result<HashMap<String, FileStorage>> {
    let mut storages = HashMap::new();
    for resource in &config.resources {
        if let Resource::Storage(storage) = &resource.resource {
            let opened = FileStorage::open(&storage.url, storage.settings.clone()).await;
            let opened = opened.map_err(|error| match error.is_transient() {
                true => error,
                false => resource.place.refuse(format_args!("resources.{}: {error}", resource.name)),
            })?;
            storages.insert(resource.name.clone(), opened);
        }
    }
    Ok(storages)
}

/// A pipeline whose services run.
pub struct RunningPipeline {
    shared: Arc<Shared>,
    manager: Arc<Manager>,
    control: Control,
    /// Where the query API listens, if it is one of the services.
    query: Option<SocketAddr>,
    /// The source and the run that it makes, if it is one of the services.
    source: Option<(String, watch::Receiver<Option<RunInfo>>)>,
    counting: Counting,
    sweeping: Option<Sweeping>,
    /// Held until the last service has ended.
    locks: Option<SourceLocks>,
}

impl RunningPipeline {
    async fn build(shared: &Arc<Shared>, indexers: &Indexers) -> Result<Self> {
        let mut manager = Manager::default();
        let (mut query, mut source) = (None, None);
        for config in &shared.config.services {
            let service: Arc<dyn Service> = match &config.options {
                ServiceOptions::Tidepool(options) => {
                    let made = RunSource::new(shared, config, options);
                    source = Some((config.name.clone(), made.run()));
                    Arc::new(made)
                }
                ServiceOptions::Query(options) => {
                    let service = QueryService::new(shared, config, options).await?;
                    query = Some(service.address());
                    Arc::new(service)
                }
                _ => follower(shared, config, indexers).await?,
            };
            manager.add(&config.name, config.options.service_type().as_str(), service);
        }
        let manager = Arc::new(manager);
        let control =
            Control::listen(shared.config.control, Arc::clone(&manager), Arc::clone(&shared.bindings))
                .await?;
        Ok(RunningPipeline {
            shared: Arc::clone(shared),
            manager,
            control,
            query,
            source,
            counting: Counting::default(),
            sweeping: None,
            locks: None,
        })
    }

    /// The services.
    pub fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// What the services use.
    pub fn bindings(&self) -> &Bindings {
        &self.shared.bindings
    }

    /// The runs.
    pub fn runs(&self) -> &Runs {
        &self.shared.runs
    }

    /// Where the control API listens.
    pub fn control_address(&self) -> SocketAddr {
        self.control.address()
    }

    /// Where the query API and its page are, if this process has them.
    pub fn query_address(&self) -> Option<SocketAddr> {
        self.query
    }

    /// Stops all services, the source first, and closes everything.
    pub async fn stop(self) -> Result<Stopped> {
        // In use until the last count is read: the store of a run closes with its last user, and the lag is read from it.
        let held = self.hold_run().await;
        // One in ERROR is left as it is: its state is the result.
        for status in self.manager.list().iter().rev().filter(|status| status.state != ServiceState::Error) {
            self.manager.act(Action::Stop, &status.service).await?;
        }
        // Read after the last service has ended: the source publishes, and indexers write, until then.
        self.counting.renew().await;
        let progress = self.progress().await;
        let services = self.manager.list();
        if let Some(held) = held {
            self.shared.runs.stores().release(held).await?;
        }
        if let Some(sweeping) = self.sweeping {
            sweeping.stop().await;
        }
        self.counting.close().await;
        self.control.close().await;
        self.shared.runs.stores().close_all().await;
        self.shared.runs.close().await?;
        drop(self.locks);
        Ok(Stopped { services, progress })
    }

    /// The store of the source's run, if a service has it open. Without it the summary has no lags, and the services still stop.
    async fn hold_run(&self) -> Option<InUse> {
        let run = self.source.as_ref().and_then(|(_, run)| run.borrow().clone())?;
        let held = self.shared.runs.stores().hold(&run.run_id);
        tokio::time::timeout(HOLD_WAIT, held).await.ok().flatten()
    }
}

/// What a stopped pipeline has done.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// The states that services ended in: one in ERROR has left something undone.
    pub services: Vec<ServiceStatus>,
    /// Everything that was done: no service runs any more.
    pub progress: Progress,
}

/// A service that follows runs.
async fn follower(
    shared: &Arc<Shared>,
    config: &ServiceConfig,
    indexers: &Indexers,
) -> Result<Arc<dyn Service>> {
    let (name, directory) = (config.name.as_str(), Arc::new(shared.runs.directory().await?));
    let binder = Binder::new(shared, config);
    Ok(match &config.options {
        ServiceOptions::Persistence(options) => {
            Arc::new(Persistence::new(name, directory, Arc::new(binder), options.clone())?)
        }
        ServiceOptions::MetadataPersistence(options) => {
            Arc::new(MetadataPersistence::new(name, directory, Arc::new(binder), options.clone())?)
        }
        ServiceOptions::MetadataIndexer(options) => {
            Arc::new(MetadataIndexer::new(name, directory, Arc::new(binder), options.clone())?)
        }
        ServiceOptions::Environment(options, _) => Arc::new(BatchIndexer::new(
            name,
            directory,
            Arc::new(EveryIndexer::environment(binder)),
            options.clone(),
        )?),
        ServiceOptions::Organism(options) => Arc::new(BatchIndexer::new(
            name,
            directory,
            Arc::new(EveryIndexer::organism(binder)),
            options.clone(),
        )?),
        ServiceOptions::Dummy(options) => {
            let dummy = Arc::new(DummyIndexer::default());
            Arc::new(BatchIndexer::new(
                name,
                directory,
                Arc::new(EveryIndexer::of(binder, dummy)),
                options.clone(),
            )?)
        }
        ServiceOptions::Own(options, own) => {
            let missing = || own.place.refuse(format_args!("no indexer {:?}", own.name));
            let indexer = Arc::clone(indexers.get(&own.name).ok_or_else(missing)?);
            Arc::new(BatchIndexer::new(
                name,
                directory,
                Arc::new(EveryIndexer::of(binder, indexer)),
                options.clone(),
            )?)
        }
        ServiceOptions::Tidepool(_) | ServiceOptions::Query(_) => {
            let service_type = config.options.service_type().as_str();
            unreachable!("a {service_type} is built by its caller")
        }
    })
}
