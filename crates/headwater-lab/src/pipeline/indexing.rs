//! An environment indexer in a process of its own, with a clock at each of its parts.
//!
//! It is the indexer of a pipeline: the announcements come from the topic, files from their storage, rows go to the index.
//! Only the calls of storage and index are timed on their way.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use headwater_pipeline::Config;
use headwater_pipeline::bindings::Bindings;
use headwater_pipeline::config::TopicConfig;
use headwater_pipeline::contracts::{
    BatchInfo, MetadataInfo, RunInfo, SimulationMetadata, TickData, TickDataBatch,
};
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::indexer::{BatchIndexer, EnvironmentIndexer, IndexerOptions};
use headwater_pipeline::resource::{
    BatchStorageRead, BindIndexer, Closer, EnvironmentWrite, IndexerBindings,
};
use headwater_pipeline::runs::{OpenRun, Runs};
use headwater_pipeline::service::{Service, Stop};
use headwater_pipeline::storage::{FileStorage, StorageSettings};
use headwater_pipeline::world::World;
use prost::Message as _;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::files::{BATCH_TOPIC, resources};
use crate::machine::{cpu_time, cpu_time_of_thread, peak_bytes_of};
use crate::soak::history::now_us;

/// The name of the thread that writes to SQLite.
const WRITER_THREAD: &str = "index-writer";
/// Files that are read once more, to see what reading consists of.
const FILES_DISSECTED: usize = 20;

/// What an indexer is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct IndexJob {
    pub(crate) run_id: String,
    /// The directory of files.
    pub(crate) files: PathBuf,
    /// The index; without one it is in the store's database.
    pub(crate) index: Option<String>,
    pub(crate) group: String,
    /// Files in the buffer at most.
    pub(crate) buffer_files_max: usize,
}

/// What an indexer has done, and what that took.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Indexed {
    pub(crate) ticks: u64,
    pub(crate) cells: u64,
    /// When it was started, and when the last transaction was committed, in microseconds since 1970.
    pub(crate) began_us: u64,
    pub(crate) committed_us: u64,
    /// From the start until it found nothing left to do and ended.
    pub(crate) ended_s: f64,
    /// In calls of the index. They come one after the other.
    pub(crate) flushed_s: f64,
    pub(crate) flushes: u64,
    /// Processor time of the process, and of the thread that writes to SQLite.
    pub(crate) cpu_s: f64,
    pub(crate) writer_cpu_s: f64,
    /// What reading all files takes on one thread: the file, its checksum, and the decoding of protobuf.
    pub(crate) file_s: f64,
    pub(crate) checksum_s: f64,
    pub(crate) decode_s: f64,
    pub(crate) peak_bytes: u64,
}

/// What the parts of the indexer have taken so far.
#[derive(Debug, Default)]
struct Times {
    ticks: AtomicU64,
    cells: AtomicU64,
    flushes: AtomicU64,
    flush_ns: AtomicU64,
    committed_us: AtomicU64,
    /// Processor time of the process and of the thread that writes to SQLite, just before that ends.
    cpu_ns: AtomicU64,
    writer_cpu_ns: AtomicU64,
    announced: Mutex<Vec<BatchInfo>>,
}

/// Indexes a run that has ended, and returns once nothing is left to do.
pub(super) async fn index(store: &str, job: &IndexJob) -> Result<Indexed> {
    let (began_us, began) = (now_us(), Instant::now());
    let location = job.files.to_str().context("the directory is not text")?;
    let bind = Arc::new(Parts {
        config: resources(store)?,
        runs: Runs::open(store).await?,
        storage: FileStorage::open(location, StorageSettings::default()).await?,
        index: job.index.clone().unwrap_or_else(|| store.to_owned()),
        group: job.group.clone(),
        times: Arc::default(),
    });
    let options = IndexerOptions {
        run_id: Some(job.run_id.clone()),
        buffer_files_max: job.buffer_files_max,
        ..IndexerOptions::default()
    };
    let directory = Arc::new(bind.runs.directory().await?);
    let indexer = BatchIndexer::new("environment", directory, bind.clone(), options)?;
    let (_stopper, stop) = Stop::new();
    indexer.run(stop).await?;
    let (ended_s, peak_bytes) = (began.elapsed().as_secs_f64(), peak_bytes_of(std::process::id())?);
    bind.runs.close().await?;
    let times = &bind.times;
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let seconds = |ns: &AtomicU64| Duration::from_nanos(count(ns)).as_secs_f64();
    let announced = times.announced.lock().expect("no panic while held").clone();
    let (file_s, checksum_s, decode_s) = dissect(job, &announced)?;
    Ok(Indexed {
        ticks: count(&times.ticks),
        cells: count(&times.cells),
        began_us,
        committed_us: count(&times.committed_us),
        ended_s,
        flushed_s: seconds(&times.flush_ns),
        flushes: count(&times.flushes),
        cpu_s: seconds(&times.cpu_ns),
        writer_cpu_s: seconds(&times.writer_cpu_ns),
        file_s,
        checksum_s,
        decode_s,
        peak_bytes,
    })
}

/// Reads some of the files again, one after the other, with a clock at each step; the times are those of all files.
fn dissect(job: &IndexJob, announced: &[BatchInfo]) -> Result<(f64, f64, f64)> {
    let some = &announced[..announced.len().min(FILES_DISSECTED)];
    let (mut file, mut checksum, mut decode) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for info in some {
        let start = Instant::now();
        let bytes = bytes::Bytes::from(fs::read(job.files.join(&info.storage_key))?);
        file += start.elapsed();
        let start = Instant::now();
        ensure!(xxh3_64(&bytes) == info.xxh3_64, "file {} is damaged", info.storage_key);
        checksum += start.elapsed();
        let start = Instant::now();
        let batch = TickDataBatch::decode(bytes)?;
        decode += start.elapsed();
        ensure!(batch.ticks.len() as u64 == info.tick_count, "file {} is incomplete", info.storage_key);
    }
    let all = announced.len() as f64 / some.len().max(1) as f64;
    Ok((file.as_secs_f64() * all, checksum.as_secs_f64() * all, decode.as_secs_f64() * all))
}

/// Binds the parts of a pipeline, with clocks in between.
struct Parts {
    config: Config,
    runs: Runs,
    storage: FileStorage,
    index: String,
    group: String,
    times: Arc<Times>,
}

#[async_trait]
impl BindIndexer for Parts {
    async fn bind(&self, run: &RunInfo) -> headwater_pipeline::Result<IndexerBindings> {
        let open = self.runs.open_run(run).await?;
        open.create_topic(BATCH_TOPIC, &TopicConfig::topic()).await?;
        let uri = self.config.binding(&format!("topic-read:{BATCH_TOPIC}?group={}", self.group))?;
        let binding = Bindings::default().bind("environment", "batches", &uri, &run.run_id)?;
        let index = Index::open(&self.index, &run.run_id, &IndexOptions::default())?;
        let timed = TimedIndex { index: index.clone(), times: Arc::clone(&self.times) };
        let storage = TimedStorage { storage: self.storage.clone(), times: Arc::clone(&self.times) };
        Ok(IndexerBindings {
            indexer: Arc::new(EnvironmentIndexer::new(Arc::new(timed))),
            batches: open.reader(&binding),
            group: self.group.clone(),
            storage: Arc::new(storage),
            metadata: Arc::new(index.clone()),
            tracker: None,
            upstream: None,
            closer: Box::new(Ends { index, run: open, times: Arc::clone(&self.times) }),
        })
    }
}

struct TimedStorage {
    storage: FileStorage,
    times: Arc<Times>,
}

#[async_trait]
impl BatchStorageRead for TimedStorage {
    async fn read_batch(&self, info: &BatchInfo) -> headwater_pipeline::Result<TickDataBatch> {
        self.times.announced.lock().expect("no panic while held").push(info.clone());
        self.storage.read_batch(info).await
    }

    async fn read_metadata(&self, info: &MetadataInfo) -> headwater_pipeline::Result<SimulationMetadata> {
        self.storage.read_metadata(info).await
    }
}

struct TimedIndex {
    index: Index,
    times: Arc<Times>,
}

#[async_trait]
impl EnvironmentWrite for TimedIndex {
    async fn create_schema(&self, world: &World) -> headwater_pipeline::Result<()> {
        EnvironmentWrite::create_schema(&self.index, world).await
    }

    async fn write_ticks(&self, ticks: &[TickData]) -> headwater_pipeline::Result<()> {
        let start = Instant::now();
        self.index.write_ticks(ticks).await?;
        let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.times.flush_ns.fetch_add(took, Ordering::Relaxed);
        self.times.flushes.fetch_add(1, Ordering::Relaxed);
        self.times.ticks.fetch_add(ticks.len() as u64, Ordering::Relaxed);
        self.times.cells.fetch_add(ticks.iter().map(|tick| tick.cell_count).sum(), Ordering::Relaxed);
        self.times.committed_us.store(now_us(), Ordering::Relaxed);
        Ok(())
    }
}

struct Ends {
    index: Index,
    run: OpenRun,
    times: Arc<Times>,
}

#[async_trait]
impl Closer for Ends {
    async fn close(self: Box<Self>) {
        // Before the thread ends with the index.
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.times.cpu_ns.store(ns(cpu_time(&[]).unwrap_or_default()), Ordering::Relaxed);
        self.times.writer_cpu_ns.store(ns(cpu_time_of_thread(WRITER_THREAD)), Ordering::Relaxed);
        self.index.close().await;
        if let Err(error) = self.run.close().await {
            tracing::warn!(%error, "run not closed");
        }
    }
}
