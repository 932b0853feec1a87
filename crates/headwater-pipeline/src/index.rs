//! The index of a run, in SQLite or PostgreSQL: metadata, cells and organisms by tick, written by indexers and read by queries.
//!
//! | database | place | tables |
//! |---|---|---|
//! | SQLite | the file `{run}.index.db` in the directory that the URL names | the same on both |
//! | PostgreSQL | the schema `{run}_index` in the database that the URL names | |
//!
//! Every write is an upsert by tick, in one transaction that is durable before it returns: batches may come again, alone or with others.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use headwater::store::{Namespace, SqlitePath, StoreUrl};

use crate::cells::Compression;
use crate::contracts::{SimulationMetadata, TickData};
use crate::error::{Error, ErrorCode, Result};
use crate::world::World;

pub mod database;
mod environment;
mod metadata;
mod organisms;
mod postgres;
mod regions;
pub mod select;
mod settings;
mod single_blob;
mod sqlite;
mod strategy;

pub(crate) use environment::place;
pub use organisms::{ANCESTORS_MAX, Organism};
pub use strategy::{
    STRATEGY_DEFAULT, StorageStrategy, StoredTick, Strategies, StrategySettings, TILE_SIZE_DEFAULT,
};

use self::database::{Database, PoolFigures};
use self::organisms::Known;
use self::postgres::Postgres;
use self::sqlite::Sqlite;

/// How an index is opened.
#[derive(Clone, Debug)]
pub struct IndexOptions {
    /// The name of the strategy that writes cells.
    pub strategy: String,
    /// The strategies by name; what any of them has written is read.
    pub strategies: Strategies,
    /// Cells along the edge of a tile, for `regions`, in a run that has no tiles yet.
    pub tile_size: u64,
    /// How cells are compressed again; `None`, the default, stores a tick's bytes unchanged.
    pub recompress: Option<Compression>,
    /// Ticks per partition of `environment_ticks`, in a run that has no such table yet. For PostgreSQL only; without it the table is one.
    pub partition_ticks: Option<u64>,
    /// Connections at most, beside the one that writes to SQLite.
    pub connections_max: usize,
    /// Unused connections that are kept open.
    pub connections_idle_min: usize,
}

impl Default for IndexOptions {
    fn default() -> Self {
        IndexOptions {
            strategy: STRATEGY_DEFAULT.to_owned(),
            strategies: Strategies::default(),
            tile_size: TILE_SIZE_DEFAULT,
            recompress: None,
            partition_ticks: None,
            connections_max: 10,
            connections_idle_min: 2,
        }
    }
}

/// The index of one run. Clones are the same handle.
#[derive(Clone)]
pub struct Index(Arc<Inner>);

struct Inner {
    run_id: String,
    database: Box<dyn Database>,
    /// The first one writes.
    strategies: Vec<Arc<dyn StorageStrategy>>,
    known_organisms: Known,
    known_metadata: OnceLock<SimulationMetadata>,
    known_world: OnceLock<World>,
}

impl Index {
    /// A handle of a run's index. Connects to nothing and creates nothing until it is used; a run without an index has no rows.
    ///
    /// ```
    /// # use headwater_pipeline::index::{Index, IndexOptions};
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let url = format!("sqlite:{}", directory.path().display());
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let index = Index::open(&url, "run_20251014_143025_550e8400e29b", &IndexOptions::default())?;
    /// assert_eq!(index.tick_range().await?, None);
    /// # Ok::<(), headwater_pipeline::Error>(()) }).unwrap();
    /// ```
    pub fn open(url: &str, run_id: &str, options: &IndexOptions) -> Result<Self> {
        if run_id.trim().is_empty() {
            return Err(Error::invalid("run id is blank"));
        }
        if options.connections_max == 0 {
            return Err(Error::invalid("connections_max 0: at least 1 is expected"));
        }
        let strategy = StrategySettings { tile_size: options.tile_size, recompress: options.recompress };
        let strategies = options.strategies.create(&options.strategy, &strategy)?;
        let database = open_database(url, run_id, options)?;
        Ok(Index(Arc::new(Inner {
            run_id: run_id.to_owned(),
            database,
            strategies,
            known_organisms: Known::default(),
            known_metadata: OnceLock::new(),
            known_world: OnceLock::new(),
        })))
    }

    /// The run.
    pub fn run_id(&self) -> &str {
        &self.0.run_id
    }

    /// How busy the connections are.
    pub fn pool(&self) -> PoolFigures {
        self.0.database.pool()
    }

    /// The database, for tables of one's own.
    pub fn database(&self) -> &dyn Database {
        &*self.0.database
    }

    /// The space that the index takes, in bytes; 0 if there is none.
    pub async fn bytes_stored(&self) -> Result<u64> {
        self.0.database.bytes_stored().await
    }

    /// Removes the index of the run. Refused while another handle of this process uses it; other processes must have closed theirs.
    pub async fn remove(self) -> Result<()> {
        self.0.database.remove().await
    }

    /// Ends the connections of this handle, after what was requested before; its calls then fail.
    pub async fn close(&self) {
        self.0.database.close().await;
    }

    fn strategies(&self) -> &[Arc<dyn StorageStrategy>] {
        &self.0.strategies
    }

    fn writing_strategy(&self) -> &dyn StorageStrategy {
        &*self.0.strategies[0]
    }

    fn known_organisms(&self) -> &Known {
        &self.0.known_organisms
    }

    fn known_metadata(&self) -> &OnceLock<SimulationMetadata> {
        &self.0.known_metadata
    }

    fn known_world(&self) -> &OnceLock<World> {
        &self.0.known_world
    }

    /// A handle serves one run.
    fn check_run(&self, ticks: &[TickData]) -> Result<()> {
        match ticks.iter().find(|tick| tick.run_id != self.0.run_id) {
            None => Ok(()),
            Some(tick) => {
                let what = format!("tick {}", tick.tick_number);
                Err(self.other_run(ErrorCode::WriteFailed, &what, &tick.run_id))
            }
        }
    }

    fn other_run(&self, code: ErrorCode, what: &str, run_id: &str) -> Error {
        Error::permanent(code, format!("{what} of run {run_id:?}: this index is of run {:?}", self.0.run_id))
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("run_id", &self.0.run_id).finish_non_exhaustive()
    }
}

fn open_database(url: &str, run_id: &str, options: &IndexOptions) -> Result<Box<dyn Database>> {
    let IndexOptions { connections_max, connections_idle_min, partition_ticks, .. } = *options;
    // The run's namespace leaves nothing in its name that a path or a statement could take for more than a name.
    let namespace = Namespace::new(run_id).map_err(|error| Error::invalid(format!("run id: {error}")))?;
    match StoreUrl::parse(url, None).map_err(|error| Error::invalid(format!("index URL: {error}")))? {
        StoreUrl::Sqlite(_) if partition_ticks.is_some() => {
            Err(Error::invalid("partition_ticks: only PostgreSQL has partitions, leave it out for sqlite"))
        }
        StoreUrl::Sqlite(path) => {
            let path = directory(&path)?.join(format!("{namespace}.index.db"));
            Ok(Box::new(Sqlite::new(&path, connections_max, connections_idle_min)))
        }
        StoreUrl::Postgres { url, .. } => {
            if partition_ticks == Some(0) {
                return Err(Error::invalid("partition_ticks 0: at least 1 is expected"));
            }
            let schema = format!("{namespace}_index");
            let database =
                Postgres::new(&url, &schema, connections_max, connections_idle_min, partition_ticks)?;
            Ok(Box::new(database))
        }
    }
}

/// Absolute: a change of the working directory does not move the index.
fn directory(path: &SqlitePath) -> Result<PathBuf> {
    let SqlitePath::File(path) = path else {
        return Err(Error::invalid("index URL: sqlite::memory: names no directory, use sqlite:DIRECTORY"));
    };
    if path.is_file() {
        let rule = "it is a file, and each run's index is a file in a directory: use sqlite:DIRECTORY";
        return Err(Error::invalid(format!("index URL: {}: {rule}", path.display())));
    }
    std::path::absolute(path)
        .map_err(|error| Error::invalid(format!("index URL: {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str, run_id: &str, options: &IndexOptions) -> String {
        let error = Index::open(url, run_id, options).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidConfiguration);
        error.to_string()
    }

    #[test]
    fn wrong_settings_are_refused_with_the_rule() {
        let defaults = IndexOptions::default();
        assert_eq!(refused("sqlite:here", " ", &defaults), "run id is blank");
        assert!(refused("sqlite:here", "7", &defaults).contains("must start with a letter"));
        assert!(refused("mysql://here", "run", &defaults).contains("mysql"));
        assert!(refused("sqlite::memory:", "run", &defaults).contains("names no directory"));
        let partitions = IndexOptions { partition_ticks: Some(5), ..IndexOptions::default() };
        assert!(refused("sqlite:here", "run", &partitions).starts_with("partition_ticks: only PostgreSQL"));
        let partitions = IndexOptions { partition_ticks: Some(0), ..IndexOptions::default() };
        assert!(refused("postgres://h/d", "run", &partitions).starts_with("partition_ticks 0"));
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(
            refused(&format!("sqlite:{}", file.path().display()), "run", &defaults).contains("it is a file")
        );
    }

    #[test]
    fn a_run_id_is_no_path() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().display());
        Index::open(&url, "run/../../x", &IndexOptions::default()).unwrap();
        assert_eq!(Namespace::new("run/../../x").unwrap().as_str(), "run_______x");
    }
}
