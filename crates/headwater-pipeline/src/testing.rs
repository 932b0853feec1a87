//! Fakes of what services depend on, in memory, for tests of indexers of one's own: nothing sleeps, and everything can be made to fail.
//!
//! ```
//! use std::sync::Arc;
//! use headwater_pipeline::indexer::{BatchIndexer, DummyIndexer, IndexerOptions};
//! use headwater_pipeline::service::{Service, Stop};
//! use headwater_pipeline::testing::MemoryPipeline;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> headwater_pipeline::Result<()> {
//! let pipeline = MemoryPipeline::default();
//! let run = pipeline.start_run("run_1").await;
//! run.announce(0..50).await; // a file of 50 ticks
//!
//! let dummy = Arc::new(DummyIndexer::default());
//! let bind = pipeline.bind_indexer(dummy.clone());
//! let indexer = BatchIndexer::new("dummy", Arc::new(pipeline.runs.clone()), bind, IndexerOptions::default())?;
//! let (stopper, stop) = Stop::new();
//! let test = async {
//!     run.batches.until_acked(&[1]).await;
//!     stopper.stop();
//! };
//! let (ended, ()) = tokio::join!(indexer.run(stop), test);
//! ended?;
//! assert_eq!(dummy.ticks(), 50);
//! # Ok(()) }
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::contracts::{
    BatchInfo, Dimension, Environment, FORMAT_VERSION, MetadataInfo, RunInfo, SimulationMetadata, TickData,
};
use crate::error::{Error, Result};
use crate::indexer::Indexer;
use crate::resource::{
    Backlog, Bind, BindIndexer, Closer, IndexerBindings, MetadataIndexerBindings,
    MetadataPersistenceBindings, PersistenceBindings, RunDirectory, TopicWriter,
};

mod faults;
mod index;
mod queue;
mod storage;
mod topic;

pub use faults::Faults;
pub use index::MemoryIndex;
pub use queue::MemoryQueue;
pub use storage::MemoryStorage;
pub use topic::MemoryTopic;

/// Cells of a tick made by [`tick`].
pub const CELLS: u64 = 5;

/// Runs and what belongs to each of them. Cheap to clone.
#[derive(Clone, Default)]
pub struct MemoryPipeline {
    /// The runs that services find.
    pub runs: MemoryRuns,
    all: Arc<Mutex<BTreeMap<String, MemoryRun>>>,
}

/// Everything of one run. Cheap to clone.
#[derive(Clone, Default)]
pub struct MemoryRun {
    /// The run's id.
    pub run_id: String,
    /// Ticks on their way to files.
    pub ticks: MemoryQueue,
    /// Metadata on its way to a file.
    pub metadata_queue: MemoryTopic<SimulationMetadata>,
    /// Announced batches.
    pub batches: MemoryTopic<BatchInfo>,
    /// Announced metadata.
    pub metadata: MemoryTopic<MetadataInfo>,
    /// Files.
    pub storage: MemoryStorage,
    /// The index.
    pub index: MemoryIndex,
}

impl MemoryPipeline {
    /// What belongs to a run, registered or not.
    pub fn run(&self, run_id: &str) -> MemoryRun {
        let mut all = lock(&self.all);
        let new = || MemoryRun { run_id: run_id.to_owned(), ..MemoryRun::default() };
        all.entry(run_id.to_owned()).or_insert_with(new).clone()
    }

    /// Registers a run, with its metadata in the index.
    pub async fn start_run(&self, run_id: &str) -> MemoryRun {
        let run = self.run(run_id);
        run.index.set_metadata(metadata(run_id));
        self.runs.set(run_id, "RUNNING");
        run
    }

    /// Bindings for this indexer, whatever the run.
    pub fn bind_indexer(&self, indexer: Arc<dyn Indexer>) -> Arc<dyn BindIndexer> {
        self.bind_indexer_with(move |_| Arc::clone(&indexer))
    }

    /// Bindings for an indexer that is made for each run.
    pub fn bind_indexer_with(
        &self,
        make: impl Fn(&MemoryRun) -> Arc<dyn Indexer> + Send + Sync + 'static,
    ) -> Arc<dyn BindIndexer> {
        Arc::new(BindMemory { pipeline: self.clone(), make: Box::new(make) })
    }
}

impl MemoryRun {
    /// Writes a file with ticks of these numbers and announces it.
    pub async fn announce(&self, numbers: Range<i64>) -> BatchInfo {
        let info = self.storage.put(&self.run_id, numbers);
        self.batches.send(&info, "").await.expect("no fault is set");
        info
    }
}

/// A tick of [`CELLS`] cells.
pub fn tick(run_id: &str, tick_number: i64) -> TickData {
    let cells = bytes::Bytes::from(format!("cells of {tick_number}"));
    TickData { run_id: run_id.to_owned(), tick_number, cell_count: CELLS, cells, ..TickData::default() }
}

/// Metadata of a small world.
pub fn metadata(run_id: &str) -> SimulationMetadata {
    let dimensions = vec![Dimension { size: 10 }, Dimension { size: 10 }];
    SimulationMetadata {
        format_version: FORMAT_VERSION,
        run_id: run_id.to_owned(),
        sampling_interval: 1,
        environment: Some(Environment { dimensions, topology: "TORUS".to_owned() }),
        ..SimulationMetadata::default()
    }
}

/// Makes the indexer of a run.
type MakeIndexer = Box<dyn Fn(&MemoryRun) -> Arc<dyn Indexer> + Send + Sync>;

struct BindMemory {
    pipeline: MemoryPipeline,
    make: MakeIndexer,
}

#[async_trait]
impl BindIndexer for BindMemory {
    async fn bind(&self, run: &RunInfo) -> Result<IndexerBindings> {
        let run = self.pipeline.bound(run)?;
        Ok(IndexerBindings {
            indexer: (self.make)(&run),
            batches: Arc::new(run.batches.clone()),
            group: "test".to_owned(),
            storage: Arc::new(run.storage.clone()),
            metadata: Arc::new(run.index.clone()),
            tracker: Some(Arc::new(run.index.clone())),
            upstream: Some(Arc::new(run.ticks.clone())),
            closer: Box::new(NoClose),
        })
    }
}

#[async_trait]
impl Bind<MetadataIndexerBindings> for MemoryPipeline {
    async fn bind(&self, run: &RunInfo) -> Result<MetadataIndexerBindings> {
        let run = self.bound(run)?;
        Ok(MetadataIndexerBindings {
            announcements: Arc::new(run.metadata.clone()),
            storage: Arc::new(run.storage.clone()),
            index: Arc::new(run.index.clone()),
            upstream: Some(Arc::new(run.metadata_queue.clone())),
            closer: Box::new(NoClose),
        })
    }
}

#[async_trait]
impl Bind<PersistenceBindings> for MemoryPipeline {
    async fn bind(&self, run: &RunInfo) -> Result<PersistenceBindings> {
        let run = self.bound(run)?;
        Ok(PersistenceBindings {
            ticks: Box::new(run.ticks.clone()),
            storage: Arc::new(run.storage.clone()),
            announcements: Arc::new(run.batches.clone()),
            closer: Box::new(NoClose),
        })
    }
}

#[async_trait]
impl Bind<MetadataPersistenceBindings> for MemoryPipeline {
    async fn bind(&self, run: &RunInfo) -> Result<MetadataPersistenceBindings> {
        let run = self.bound(run)?;
        Ok(MetadataPersistenceBindings {
            metadata: Arc::new(run.metadata_queue.clone()),
            storage: Arc::new(run.storage.clone()),
            announcements: Arc::new(run.metadata.clone()),
            closer: Box::new(NoClose),
        })
    }
}

impl MemoryPipeline {
    fn bound(&self, run: &RunInfo) -> Result<MemoryRun> {
        match run.run_id.trim() {
            "" => Err(Error::invalid("the run id is blank")),
            run_id => Ok(self.run(run_id)),
        }
    }
}

/// Nothing to close in memory.
struct NoClose;

#[async_trait]
impl Closer for NoClose {
    async fn close(self: Box<Self>) {}
}

#[async_trait]
impl<T: Clone + Send + Sync + 'static> Backlog for MemoryTopic<T> {
    async fn lag(&self) -> Result<u64> {
        Ok(self.unsettled())
    }
}

#[async_trait]
impl Backlog for MemoryQueue {
    async fn lag(&self) -> Result<u64> {
        Ok(self.unsettled())
    }
}

/// A list of runs. Cheap to clone.
#[derive(Clone, Default)]
pub struct MemoryRuns {
    runs: Arc<Mutex<Vec<RunInfo>>>,
    changed: Arc<Notify>,
}

impl MemoryRuns {
    /// Registers a run, or changes its state.
    pub fn set(&self, run_id: &str, state: &str) {
        let mut runs = lock(&self.runs);
        match runs.iter_mut().find(|run| run.run_id == run_id) {
            Some(run) => run.state = state.to_owned(),
            None => {
                let (namespace, run_id) = (run_id.to_owned(), run_id.to_owned());
                let run = RunInfo { run_id, namespace, state: state.to_owned(), ..RunInfo::default() };
                runs.push(run);
            }
        }
        drop(runs);
        self.changed.notify_waiters();
    }
}

#[async_trait]
impl RunDirectory for MemoryRuns {
    async fn run(&self, run_id: &str) -> Result<Option<RunInfo>> {
        Ok(lock(&self.runs).iter().find(|run| run.run_id == run_id).cloned())
    }

    async fn newest(&self, after: Option<&str>) -> Result<Option<RunInfo>> {
        let runs = lock(&self.runs);
        let newest = runs.last();
        // Registered in the order in which they start.
        Ok(newest.filter(|run| after != Some(run.run_id.as_str())).cloned())
    }

    async fn changed(&self, at_most: Duration) {
        let _ = tokio::time::timeout(at_most, self.changed.notified()).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
