//! The query API and its page: as a service, and as a router for a larger server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use tokio::net::TcpListener;

use super::{Operator, RunningPipeline, Shared};
use crate::bindings::BindingHandle;
use crate::config::{Binding, QueryOptions, Resource, ServiceConfig};
use crate::contracts::RunInfo;
use crate::control;
use crate::error::{Error, ErrorCode, Result};
use crate::health::Health;
use crate::index::{Index, IndexOptions};
use crate::query::{self, OpenIndexes, QUERY_BYTES_MAX_DEFAULT, QueryState, RunCatalog};
use crate::resource::RunDirectory;
use crate::runs::Directory;
use crate::service::{Service, Stop};

/// How long the end waits for requests that are under way.
const END_WITHIN: Duration = Duration::from_secs(2);

/// Indexes that are open at a time.
const INDEXES_MAX: usize = 16;
/// Those of a larger server, which shows the newest run above all. One that is open keeps its file although its run is dropped.
const INDEXES_SHOWN_MAX: usize = 2;

/// Runs as they are registered.
struct Catalog {
    shared: Arc<Shared>,
    service: String,
    config: Binding,
    directory: Directory,
    indexes: OpenIndexes,
    /// The binding of the run that was asked for last.
    binding: Mutex<Option<(String, Arc<BindingHandle>)>>,
}

impl Catalog {
    /// The binding of a run: figures belong to the service and continue from run to run.
    fn binding(&self, run_id: &str) -> Result<Arc<BindingHandle>> {
        let mut last = self.binding.lock().expect("no panic while held");
        if let Some((_, binding)) = last.as_ref().filter(|(run, _)| run == run_id) {
            return Ok(Arc::clone(binding));
        }
        let binding = self.shared.bindings.bind(&self.service, "index", &self.config, run_id)?;
        *last = Some((run_id.to_owned(), Arc::clone(&binding)));
        Ok(binding)
    }
}

#[async_trait]
impl RunCatalog for Catalog {
    async fn runs(&self) -> Result<Vec<RunInfo>> {
        self.directory.list().await
    }

    async fn run(&self, run_id: &str) -> Result<Option<RunInfo>> {
        self.directory.run(run_id).await
    }

    async fn index(&self, run_id: &str) -> Result<Index> {
        let binding = self.binding(run_id)?;
        let index = binding.record("open index", async { self.indexes.get(run_id) }).await?;
        binding.set_pool(&index);
        Ok(index)
    }
}

/// Runs as they are registered, without a service: nothing is measured.
struct Registered {
    directory: Directory,
    indexes: OpenIndexes,
}

#[async_trait]
impl RunCatalog for Registered {
    async fn runs(&self) -> Result<Vec<RunInfo>> {
        self.directory.list().await
    }

    async fn run(&self, run_id: &str) -> Result<Option<RunInfo>> {
        self.directory.run(run_id).await
    }

    async fn index(&self, run_id: &str) -> Result<Index> {
        self.indexes.get(run_id)
    }
}

async fn router(shared: &Shared) -> Result<Router> {
    let index = shared.config.index()?;
    let options = IndexOptions {
        strategies: shared.strategies.clone(),
        connections_max: index.values.connections_max,
        connections_idle_min: 0,
        ..IndexOptions::default()
    };
    let indexes = OpenIndexes::new(&index.url, &options, INDEXES_SHOWN_MAX);
    let catalog = Registered { directory: shared.runs.directory().await?, indexes };
    Ok(query::router(QueryState::new(Arc::new(catalog), QUERY_BYTES_MAX_DEFAULT)))
}

impl Operator {
    /// The query API with its page, to be nested under a path of a larger server. It answers as long as this is open.
    pub async fn router(&self) -> Result<Router> {
        router(&self.shared).await
    }
}

impl RunningPipeline {
    /// The same, with what this process runs: `GET /services` and `GET /resources`, as the control API has them.
    pub async fn router(&self) -> Result<Router> {
        let running = control::reading(Arc::clone(&self.manager), Arc::clone(&self.shared.bindings));
        Ok(router(&self.shared).await?.merge(running))
    }
}

/// Answers queries until it is stopped.
pub(super) struct QueryService {
    shared: Arc<Shared>,
    service: ServiceConfig,
    options: QueryOptions,
    address: SocketAddr,
    /// The listener of the first start: an address that is taken is refused before anything starts.
    listener: Mutex<Option<TcpListener>>,
    health: Arc<Health>,
}

impl QueryService {
    pub(super) async fn new(
        shared: &Arc<Shared>,
        service: &ServiceConfig,
        options: &QueryOptions,
    ) -> Result<Self> {
        let listener = bind(options.listen).await.map_err(|error| service.place.refuse(error))?;
        let address = listener.local_addr().map_err(|error| failed(options.listen, &error))?;
        Ok(QueryService {
            shared: Arc::clone(shared),
            service: service.clone(),
            options: options.clone(),
            address,
            listener: Mutex::new(Some(listener)),
            health: Arc::new(Health::of_service(&service.name)),
        })
    }

    /// The registered runs and their indexes.
    async fn catalog(&self) -> Result<Catalog> {
        let missing =
            || Error::invalid(format_args!("service {}: resources.index is missing", self.service.name));
        let binding = self.service.bindings.get("index").ok_or_else(missing)?;
        let Some(Resource::Index(index)) =
            self.shared.config.resource(&binding.resource).map(|config| &config.resource)
        else {
            return Err(missing());
        };
        let options = IndexOptions {
            strategies: self.shared.strategies.clone(),
            connections_max: binding.values.connections_max,
            connections_idle_min: binding.values.connections_idle_min,
            ..IndexOptions::default()
        };
        let indexes = OpenIndexes::new(&index.url, &options, INDEXES_MAX);
        Ok(Catalog {
            shared: Arc::clone(&self.shared),
            service: self.service.name.clone(),
            config: binding.clone(),
            directory: self.shared.runs.directory().await?,
            indexes,
            binding: Mutex::default(),
        })
    }

    /// Where it listens, also after a restart.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| failed(address, &error))
}

fn failed(address: SocketAddr, error: &std::io::Error) -> Error {
    Error::permanent(
        ErrorCode::InvalidConfiguration,
        format!("query API cannot listen on {address}: {error}"),
    )
}

#[async_trait]
impl Service for QueryService {
    async fn run(&self, mut stop: Stop) -> Result<()> {
        let first = self.listener.lock().expect("no panic while held").take();
        let listener = match first {
            Some(listener) => listener,
            None => bind(self.address).await?,
        };
        let router =
            query::router(QueryState::new(Arc::new(self.catalog().await?), self.options.query_bytes_max));
        tracing::info!(service = self.service.name, address = %self.address, "query API started");
        let mut stopped = stop.clone();
        let serving =
            axum::serve(listener, router).with_graceful_shutdown(async move { stopped.requested().await });
        let ended = tokio::select! {
            ended = serving => ended,
            // A connection that a browser keeps open does not hold up the end.
            () = async { stop.requested().await; tokio::time::sleep(END_WITHIN).await } => Ok(()),
        };
        tracing::info!(service = self.service.name, "query API stopped");
        ended.map_err(|error| Error::permanent(ErrorCode::ReadFailed, format!("query API ended: {error}")))
    }

    fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }
}
