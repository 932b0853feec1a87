//! Where a case has its index: a directory, or a schema of the test server, of its own.

use headwater_pipeline::cells::{self, Cell, Compression};
use headwater_pipeline::contracts::{FORMAT_VERSION, SimulationMetadata, TickData};
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::world::World;

use super::{create_all, plane};

/// The place of one run's index.
pub(crate) struct Place {
    url: String,
    run: String,
    directory: Option<tempfile::TempDir>,
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let url = format!("sqlite:{}", directory.path().join("index").display());
        Place { url, run: run(), directory: Some(directory) }
    }

    /// `None`, with a printed notice, where no server is given, and a failure where nothing may be skipped.
    pub(crate) fn postgres() -> Option<Self> {
        let Ok(url) = std::env::var("HEADWATER_TEST_POSTGRES") else {
            let required = ["HEADWATER_TEST_REQUIRE_ALL", "CI"];
            let required = required.iter().any(|name| std::env::var_os(name).is_some());
            assert!(!required, "HEADWATER_TEST_POSTGRES is not set, and nothing may be skipped");
            println!("skipped: HEADWATER_TEST_POSTGRES is not set");
            return None;
        };
        Some(Place { url, run: run(), directory: None })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    /// The file of the index.
    pub(crate) fn file(&self) -> std::path::PathBuf {
        let directory = self.directory.as_ref().expect("in a directory");
        directory.path().join("index").join(format!("{}.index.db", self.run))
    }

    /// How many connections a handle with one reader keeps: SQLite has one more, which writes.
    pub(crate) fn connections_when_idle(&self) -> usize {
        if self.directory.is_some() { 2 } else { 1 }
    }

    /// A handle.
    pub(crate) fn index(&self, options: &IndexOptions) -> Index {
        Index::open(&self.url, &self.run, options).expect("opened")
    }

    /// A handle that shares nothing with others, as in another process: SQLite's handles of one path share their writer.
    pub(crate) fn other_process(&self, number: usize, options: &IndexOptions) -> Index {
        let Some(directory) = &self.directory else { return self.index(options) };
        let target = directory.path().join("index");
        std::fs::create_dir_all(&target).expect("a directory");
        let link = directory.path().join(format!("link-{number}"));
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        Index::open(&format!("sqlite:{}", link.display()), &self.run, options).expect("opened")
    }

    /// A handle of a world of 100 x 100 whose schema is there.
    pub(crate) async fn prepared(&self, options: &IndexOptions) -> Index {
        let index = self.index(options);
        create_all(&index, &plane()).await.expect("created");
        index
    }

    pub(crate) fn tick(&self, tick_number: i64, cells: &[Cell]) -> TickData {
        let (blob, cell_count) = cells::encode_counted(cells, Compression::default());
        TickData { run_id: self.run.clone(), tick_number, cell_count, cells: blob, ..TickData::default() }
    }

    pub(crate) fn metadata(&self, world: &World) -> SimulationMetadata {
        SimulationMetadata {
            format_version: FORMAT_VERSION,
            run_id: self.run.clone(),
            start_time_ms: 1_760_452_225_000,
            seed: 7,
            environment: Some(world.to_environment()),
            sampling_interval: 1,
            resolved_config: "[world]\n".into(),
            molecule_types: [(1, "code".into())].into(),
        }
    }

    /// Removes what the case has made on the server; a directory is removed by itself.
    pub(crate) async fn leave(&self) {
        if self.directory.is_none() {
            self.index(&IndexOptions::default()).remove().await.expect("removed");
        }
    }
}

/// A run that no other case has.
fn run() -> String {
    format!("run_{}", uuid::Uuid::now_v7().simple())
}
