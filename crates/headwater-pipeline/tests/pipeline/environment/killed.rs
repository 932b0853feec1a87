//! A process that indexes and is killed: after a commit and before its ack, or with ticks in its buffer.

use std::process::{Command, Stdio};
use std::sync::Arc;

use async_trait::async_trait;
use headwater_pipeline::Result;
use headwater_pipeline::contracts::{RunInfo, SimulationMetadata, TickData};
use headwater_pipeline::indexer::{BatchIndexer, EnvironmentIndexer, Indexer, IndexerOptions};

use super::place::{Place, eventually};
use super::{environment, soon};
use crate::running::start;

/// The place that the process works on: its coordinates, one per line.
const PLACE: &str = "HEADWATER_TEST_KILLED_INDEXER";

/// How far the process comes.
const HOW: &str = "HEADWATER_TEST_KILLED_HOW";

/// When the process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dies {
    /// Its commit is there, and it never acks.
    AfterCommit,
    /// 250 ticks are flushed, what is more is in its buffer for a minute.
    WithTicksBuffered,
    /// The same, with marks of what is done.
    WithTicksBufferedAndMarks,
}

impl Dies {
    const ALL: [Dies; 3] = [Dies::AfterCommit, Dies::WithTicksBuffered, Dies::WithTicksBufferedAndMarks];

    fn indexer(self, place: &Place) -> BatchIndexer {
        let buffering = IndexerOptions { insert_batch_size: 250, flush_timeout_ms: 60_000, ..soon() };
        match self {
            Dies::AfterCommit => {
                place.indexer("environment", soon(), |index| Arc::new(Stuck(EnvironmentIndexer::new(index))))
            }
            Dies::WithTicksBuffered => place.indexer("environment", buffering, environment),
            Dies::WithTicksBufferedAndMarks => {
                let options = IndexerOptions { enable_idempotency: true, ..buffering };
                place.indexer("environment", options, environment)
            }
        }
    }
}

/// Starts the process, waits until it has come as far as is said, and kills it.
pub(crate) async fn index_and_die(place: &Place, dies: Dies, mut is_there: impl AsyncFnMut() -> bool) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["environment::killed::indexer_to_be_killed", "--exact", "--nocapture"])
        .env(PLACE, place.coordinates().join("\n"))
        .env(HOW, format!("{dies:?}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("started");
    eventually("the other process commits", async || {
        assert!(child.try_wait().expect("asked").is_none(), "the process ended by itself");
        is_there().await
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
    let how = std::env::var(HOW).expect("set with the place");
    let dies = Dies::ALL.into_iter().find(|dies| format!("{dies:?}") == how).expect("one of them");
    let _ = start(dies.indexer(&place)).ended().await;
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
