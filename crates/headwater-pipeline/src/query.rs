//! The query API: what the indexes of runs contain, over HTTP, and a page that shows it.
//!
//! | path | answer |
//! |---|---|
//! | `/`, `/world` | the page |
//! | `/runs` | runs, newest first, with their state and indexed ticks |
//! | `/runs/{run}` | one of them |
//! | `/runs/{run}/metadata` | its metadata |
//! | `/runs/{run}/ticks` | ticks that are indexed |
//! | `/runs/{run}/ticks/{tick}/cells` | cells of a tick, whole or a region, as JSON or protobuf |
//! | `/runs/{run}/ticks/{tick}/cells/{cell}` | one cell of a tick |
//! | `/runs/{run}/cells/{cell}/history` | one cell over time |
//! | `/runs/{run}/difference` | what differs between two ticks |
//! | `/runs/{run}/ticks/{tick}/organisms` | organisms of a tick |
//! | `/runs/{run}/organisms/{id}/history` | one organism over time |
//! | `/runs/{run}/organisms/{id}/lineage` | its ancestors and children |
//!
//! Parameters and answers: `docs/pipeline-queries.md`. Errors are `application/problem+json`: 400 for a wrong parameter, 404 for what does
//! not exist or is not indexed yet, 503 for what may work later.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;
use tower_http::compression::CompressionLayer;

use crate::contracts::RunInfo;
use crate::index::Index;
use crate::world::World;

mod answer;
mod budget;
mod catalog;
mod cells;
mod organisms;
mod page;
mod params;
mod problem;
mod runs;

pub use budget::QUERY_BYTES_MAX_DEFAULT;
pub use catalog::{FixedRuns, OpenIndexes, RunCatalog};

use self::budget::Budget;
use self::problem::{Answer, Problem};

/// What requests share. Clones are the same.
#[derive(Clone)]
pub struct QueryState(Arc<Shared>);

struct Shared {
    catalog: Arc<dyn RunCatalog>,
    budget: Budget,
}

impl QueryState {
    /// Runs of a catalog. Requests together use about `query_bytes_max` bytes for decoding and answers; those beyond it are answered
    /// with 503.
    pub fn new(catalog: Arc<dyn RunCatalog>, query_bytes_max: u64) -> Self {
        QueryState(Arc::new(Shared { catalog, budget: Budget::new(query_bytes_max) }))
    }

    fn catalog(&self) -> &dyn RunCatalog {
        &*self.0.catalog
    }

    fn budget(&self) -> &Budget {
        &self.0.budget
    }

    async fn run(&self, run_id: &str) -> Answer<RunInfo> {
        self.catalog().run(run_id).await?.ok_or_else(|| Problem::not_found(format!("no run {run_id:?}")))
    }

    /// The index of a run that exists.
    async fn index(&self, run_id: &str) -> Answer<Index> {
        self.run(run_id).await?;
        Ok(self.catalog().index(run_id).await?)
    }

    /// The same with the run's world.
    async fn index_and_world(&self, run_id: &str) -> Answer<(Index, World)> {
        let index = self.index(run_id).await?;
        match index.world().await? {
            Some(world) => Ok((index, world)),
            None => Err(Problem::not_found(format!("metadata of run {run_id:?} is not indexed yet"))),
        }
    }
}

/// The routes, to be served as they are or nested under a path of a larger server.
pub fn router(state: QueryState) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/world", get(page::page))
        .route("/runs", get(runs::runs))
        .route("/runs/{run}", get(runs::run))
        .route("/runs/{run}/metadata", get(runs::metadata))
        .route("/runs/{run}/ticks", get(runs::ticks))
        .route("/runs/{run}/ticks/{tick}/cells", get(cells::cells))
        .route("/runs/{run}/ticks/{tick}/cells/{cell}", get(cells::cell))
        .route("/runs/{run}/cells/{cell}/history", get(cells::history))
        .route("/runs/{run}/difference", get(cells::difference))
        .route("/runs/{run}/ticks/{tick}/organisms", get(organisms::organisms))
        .route("/runs/{run}/organisms/{id}/history", get(organisms::history))
        .route("/runs/{run}/organisms/{id}/lineage", get(organisms::lineage))
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::only_get)
        .layer(map_response(not_sniffed))
        .layer(CompressionLayer::new())
        .with_state(state)
}

/// A browser must not take an answer for a type that it does not have.
async fn not_sniffed(mut response: Response) -> Response {
    let header: HeaderName = header::X_CONTENT_TYPE_OPTIONS;
    response.headers_mut().insert(header, HeaderValue::from_static("nosniff"));
    response
}
