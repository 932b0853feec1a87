//! A process that commits a batch and is killed before its ack.

use std::process::{Command, Stdio};
use std::sync::Arc;

use async_trait::async_trait;
use headwater_pipeline::Result;
use headwater_pipeline::contracts::{RunInfo, SimulationMetadata, TickData};
use headwater_pipeline::indexer::{EnvironmentIndexer, Indexer};
use headwater_pipeline::resource::EnvironmentWrite;

use super::place::{Place, eventually};
use super::soon;
use crate::running::start;

/// The place that the process works on: its coordinates, one per line.
const PLACE: &str = "HEADWATER_TEST_KILLED_INDEXER";

/// Starts the process, waits for its commit and kills it.
pub(crate) async fn index_and_die(place: &Place) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["environment::killed::indexer_to_be_killed", "--exact", "--nocapture"])
        .env(PLACE, place.coordinates().join("\n"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("started");
    eventually("the other process commits", async || {
        assert!(child.try_wait().expect("asked").is_none(), "the process ended by itself");
        !place.ticks().await.is_empty()
    })
    .await;
    // SIGKILL.
    child.kill().expect("killed");
    child.wait().expect("ended");
}

/// The process; as a test of its own it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexer_to_be_killed() {
    let Ok(coordinates) = std::env::var(PLACE) else { return };
    let [directory, store, index, run_id] =
        &coordinates.split('\n').map(str::to_owned).collect::<Vec<_>>()[..]
    else {
        panic!("four coordinates are expected");
    };
    // Below the other one's, so that this one's end removes nothing; it is killed before anyway.
    let own = tempfile::tempdir_in(directory).expect("a directory");
    std::os::unix::fs::symlink(format!("{directory}/files"), own.path().join("files")).expect("linked");
    let (run_id, namespace) = (run_id.clone(), run_id.clone());
    let run = RunInfo { run_id, namespace, state: "RUNNING".into(), ..RunInfo::default() };
    let place = Place::open(own, store.clone(), index.clone(), run).await;
    let stuck = |index: Arc<dyn EnvironmentWrite>| -> Arc<dyn Indexer> {
        Arc::new(Stuck(EnvironmentIndexer::new(index)))
    };
    let _ = start(place.indexer("environment", soon(), stuck)).ended().await;
}

/// Commits and never returns.
struct Stuck(EnvironmentIndexer);

#[async_trait]
impl Indexer for Stuck {
    async fn prepare_schema(&self, metadata: Option<&SimulationMetadata>) -> Result<()> {
        self.0.prepare_schema(metadata).await
    }

    async fn flush_ticks(&self, ticks: &[TickData]) -> Result<()> {
        self.0.flush_ticks(ticks).await?;
        std::future::pending().await
    }
}
