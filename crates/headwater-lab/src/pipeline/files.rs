//! Runs whose files are written and announced before anything is measured, as a source and its persistence leave them.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use headwater_pipeline::bindings::Bindings;
use headwater_pipeline::cells::Compression;
use headwater_pipeline::config::TopicConfig;
use headwater_pipeline::contracts::{BatchInfo, FORMAT_VERSION, RunInfo, SimulationMetadata, TickData};
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::resource::{BatchStorageWrite, MetadataWrite};
use headwater_pipeline::runs::Runs;
use headwater_pipeline::storage::{FileStorage, StorageSettings};
use headwater_pipeline::tidepool::Synthetic;
use headwater_pipeline::world::{Topology, World};
use headwater_pipeline::{Config, RunId};

use super::BATCH;
use crate::check::progress;

/// The topic in which files are announced.
pub(super) const BATCH_TOPIC: &str = "batch-topic";

/// What is bound, for programs that use parts of a pipeline.
const RESOURCES: &str = r#"
[pipeline]
store = "${STORE}"

[resources.batch-topic]
type = "topic"
"#;

/// A configuration with the announcements' topic.
pub(super) fn resources(store: &str) -> Result<Config> {
    let lookup = |name: &str| (name == "STORE").then(|| store.to_owned());
    Ok(Config::parse(Path::new("the lab"), RESOURCES, &lookup)?)
}

/// A run that has ended, with all its files.
pub(super) struct Prepared {
    pub(super) run: RunInfo,
    pub(super) metadata: SimulationMetadata,
    pub(super) ticks: u64,
    /// The bytes of all cells, as the source compressed them.
    pub(super) cell_bytes: u64,
    pub(super) batches: Vec<BatchInfo>,
    pub(super) storage: FileStorage,
}

/// Makes ticks of a world, of which a share is occupied, in files of [`BATCH`], and announces them.
pub(super) async fn prepare(
    store: &str,
    directory: &Path,
    world: &World,
    occupancy: f64,
    ticks: u64,
    seed: u64,
) -> Result<Prepared> {
    progress(&format!("making {ticks} ticks"));
    let began = Instant::now();
    let runs = Runs::open(store).await?;
    let run = register(&runs, "RUNNING").await?;
    let open = runs.open_run(&run).await?;
    open.create_topic(BATCH_TOPIC, &TopicConfig::topic()).await?;
    let uri = resources(store)?.binding(&format!("topic-write:{BATCH_TOPIC}"))?;
    let writer = open.writer::<BatchInfo>(&Bindings::default().bind("lab", "batches", &uri, &run.run_id)?);
    let location = directory.to_str().context("the directory is not text")?;
    let storage = FileStorage::open(location, StorageSettings::default()).await?;
    let mut source = Synthetic::new(world, occupancy, seed, Compression::default())?;
    let (mut batches, mut cell_bytes, mut left) = (Vec::new(), 0, ticks);
    while left > 0 {
        let count = left.min(BATCH);
        let made: Vec<TickData> =
            tokio::task::block_in_place(|| (0..count).map(|_| source.next_tick(&run.run_id)).collect());
        cell_bytes += made.iter().map(|tick| tick.cells.len() as u64).sum::<u64>();
        let info = storage.write_batch(made).await?;
        writer.send(&info, &info.storage_key).await?;
        batches.push(info);
        left -= count;
    }
    open.close().await?;
    let run = RunInfo { state: "ENDED".into(), ..run };
    runs.register(&run).await?;
    runs.close().await?;
    progress(&format!("made in {:.1} s, {} bytes a tick", began.elapsed().as_secs_f64(), cell_bytes / ticks));
    let metadata = metadata(&run.run_id, world, seed);
    Ok(Prepared { run, metadata, ticks, cell_bytes, batches, storage })
}

/// Registers a new run.
pub(super) async fn register(runs: &Runs, state: &str) -> Result<RunInfo> {
    let run_id = RunId::generate();
    let run = RunInfo {
        run_id: run_id.to_string(),
        namespace: run_id.to_string(),
        started_at_ms: run_id.started_at().as_millisecond(),
        state: state.to_owned(),
        ..RunInfo::default()
    };
    runs.register(&run).await?;
    Ok(run)
}

/// The metadata of a run of this world.
pub(super) fn metadata(run_id: &str, world: &World, seed: u64) -> SimulationMetadata {
    SimulationMetadata {
        format_version: FORMAT_VERSION,
        run_id: run_id.to_owned(),
        seed,
        environment: Some(world.to_environment()),
        sampling_interval: 1,
        ..SimulationMetadata::default()
    }
}

/// An index with the run's metadata, which environment indexers wait for.
pub(super) async fn index_with_metadata(
    url: &str,
    metadata: &SimulationMetadata,
    options: &IndexOptions,
) -> Result<Arc<Index>> {
    let index = Index::open(url, &metadata.run_id, options)?;
    MetadataWrite::create_schema(&index).await?;
    index.insert_metadata(metadata).await?;
    Ok(Arc::new(index))
}

/// A world on a torus.
pub(super) fn torus(sizes: &[u64]) -> Result<World> {
    Ok(World::new(sizes, Topology::Torus)?)
}
