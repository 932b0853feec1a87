//! An indexer of one's own: how many organisms were alive in each tick.
//!
//! `cargo run -p headwater-pipeline --example own_indexer`

use std::error::Error;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use headwater_pipeline::bindings::Bindings;
use headwater_pipeline::contracts::{RunInfo, SimulationMetadata, TickData};
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::indexer::{BatchIndexer, Indexer, IndexerOptions};
use headwater_pipeline::resource::{BindIndexer, Closer, IndexerBindings};
use headwater_pipeline::runs::{OpenRun, Runs};
use headwater_pipeline::service::{Service, Stop};
use headwater_pipeline::storage::FileStorage;
use headwater_pipeline::{Config, ErrorCode, Pipeline, Result};
use rusqlite::Connection;

/// The indexer: everything around these two functions is the same for all of them.
struct Population(Mutex<Connection>);

#[async_trait]
impl Indexer for Population {
    async fn prepare_schema(&self, _metadata: Option<&SimulationMetadata>) -> Result<()> {
        let connection = self.0.lock().expect("no panic while held");
        let table =
            "CREATE TABLE IF NOT EXISTS population (tick INTEGER PRIMARY KEY, alive INTEGER NOT NULL)";
        connection.execute(table, ()).map(drop).map_err(|error| failed(&error))
    }

    async fn flush_ticks(&self, ticks: &[TickData]) -> Result<()> {
        // One transaction, durable when this returns. Ticks may come again, so they are upserts.
        let write = |connection: &mut Connection| {
            let transaction = connection.transaction()?;
            for tick in ticks {
                let alive = tick.organisms.iter().filter(|organism| organism.alive).count() as i64;
                let upsert = "INSERT INTO population VALUES (?1, ?2) ON CONFLICT (tick) DO UPDATE SET alive = excluded.alive";
                transaction.prepare_cached(upsert)?.execute((tick.tick_number, alive))?;
            }
            transaction.commit()
        };
        write(&mut self.0.lock().expect("no panic while held")).map_err(|error| failed(&error))
    }
}

/// Whether waiting helps: a database that is locked or a disk that is full will be free again.
fn failed(error: &rusqlite::Error) -> headwater_pipeline::Error {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull};
    match error.sqlite_error_code() {
        Some(DatabaseBusy | DatabaseLocked | DiskFull) => {
            headwater_pipeline::Error::transient(ErrorCode::WriteFailed, error)
        }
        _ => headwater_pipeline::Error::permanent(ErrorCode::WriteFailed, error),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    // A pipeline with its source: it makes 300 ticks, writes them to files and announces these.
    let config = Config::default_embedded(directory.path(), Some(300))?;
    let pipeline = Pipeline::from_config(config.clone()).start().await?;
    pipeline.finished().await?;

    // A group that is new starts at the beginning, also after the run has ended.
    let run_id = pipeline.runs().list().await?.remove(0).run_id;
    let connection = Connection::open(directory.path().join("population.db"))?;
    let bind =
        Bind { config, runs: pipeline.runs().clone(), indexer: Arc::new(Population(Mutex::new(connection))) };
    let options = IndexerOptions { run_id: Some(run_id), ..IndexerOptions::default() };
    let directory_of_runs = Arc::new(pipeline.runs().directory().await?);
    let indexer = BatchIndexer::new("population", directory_of_runs, Arc::new(bind), options)?;
    let (_stopper, stop) = Stop::new();
    indexer.run(stop).await?; // returns because its run is finished; others would be followed

    let count = "SELECT count(*), max(alive) FROM population";
    let (ticks, most): (u32, u32) =
        Connection::open(directory.path().join("population.db"))?
            .query_row(count, (), |row| Ok((row.get(0)?, row.get(1)?)))?;
    println!("{ticks} ticks indexed, at most {most} organisms alive");
    assert_eq!(ticks, 300);
    pipeline.stop().await?;
    Ok(())
}

/// What the indexer uses of a run: announcements, files and metadata.
struct Bind {
    config: Config,
    runs: Runs,
    indexer: Arc<dyn Indexer>,
}

#[async_trait]
impl BindIndexer for Bind {
    async fn bind(&self, run: &RunInfo) -> Result<IndexerBindings> {
        let (files, index) = (self.config.storage()?, self.config.index()?);
        let uri = self.config.binding("topic-read:batch-topic?group=population")?;
        let storage = Arc::new(FileStorage::open(&files.url, files.settings.clone()).await?);
        let metadata = Arc::new(Index::open(&index.url, &run.run_id, &IndexOptions::default())?);
        let binding = Bindings::default().bind("population", "batches", &uri, &run.run_id)?;
        let open = self.runs.open_run(run).await?;
        Ok(IndexerBindings {
            indexer: Arc::clone(&self.indexer),
            batches: open.reader(&binding),
            group: "population".to_owned(),
            storage,
            metadata: metadata.clone(),
            tracker: None,
            upstream: Some(open.backlog("tick-queue")),
            closer: Box::new(Close(open, metadata)),
        })
    }
}

struct Close(OpenRun, Arc<Index>);

#[async_trait]
impl Closer for Close {
    async fn close(self: Box<Self>) {
        self.1.close().await;
        if let Err(error) = self.0.close().await {
            eprintln!("run not closed: {error}");
        }
    }
}
