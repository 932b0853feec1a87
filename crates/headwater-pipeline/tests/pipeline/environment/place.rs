//! Where a case runs: a run of its own with its topics, files and index.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use headwater::{Headwater, OpenOptions};
use headwater_pipeline::bindings::Bindings;
use headwater_pipeline::cells::{self, Cell, Compression};
use headwater_pipeline::config::TopicConfig;
use headwater_pipeline::contracts::{BatchInfo, RunInfo, TickData};
use headwater_pipeline::index::select::Selection;
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::indexer::{BatchIndexer, Indexer, IndexerOptions};
use headwater_pipeline::persistence::{Persistence, PersistenceOptions};
use headwater_pipeline::resource::{
    BatchStorageRead, BatchStorageWrite, Bind, BindIndexer, Closer, Delivery, EnvironmentWrite, Handler,
    IdempotencyTracker, IndexerBindings, MetadataRead, MetadataWrite, PersistenceBindings, Reading,
    TickQueueWriter, TopicReader, TopicWriter, Verdict,
};
use headwater_pipeline::runs::{Directory, OpenRun, Runs};
use headwater_pipeline::storage::{FileStorage, StorageSettings};
use headwater_pipeline::testing::metadata;
use headwater_pipeline::{Config, Result, RunId};

/// Longer than anything here takes on a busy machine; a wait of this length has failed.
const DEADLINE: Duration = Duration::from_secs(60);
const GROUP: &str = "environment";
const TOPIC: &str = "batch-topic";
const QUEUE: &str = "tick-queue";

/// A run and what belongs to it.
pub(crate) struct Place {
    directory: tempfile::TempDir,
    store: String,
    index_url: String,
    config: Config,
    runs: Runs,
    directory_of_runs: Arc<Directory>,
    run: RunInfo,
    open: OpenRun,
    files: FileStorage,
    announcements: Arc<dyn TopicWriter<BatchInfo>>,
    ticks: Arc<dyn TickQueueWriter>,
    deliveries: Arc<Mutex<Vec<u32>>>,
}

impl Place {
    pub(crate) async fn sqlite() -> Self {
        let place = Place::bare_sqlite().await.expect("a file");
        place.index_metadata().await;
        place
    }

    pub(crate) async fn postgres() -> Option<Self> {
        let place = Place::bare_postgres().await?;
        place.index_metadata().await;
        Some(place)
    }

    /// Without metadata in the index.
    pub(crate) async fn bare_sqlite() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = format!("sqlite:{}", directory.path().join("pipeline.db").display());
        let index = format!("sqlite:{}", directory.path().join("index").display());
        Some(Place::with_a_run(directory, store, index).await)
    }

    /// `None`, with a printed notice, where no server is given, and a failure where nothing may be skipped.
    pub(crate) async fn bare_postgres() -> Option<Self> {
        let Ok(server) = std::env::var("HEADWATER_TEST_POSTGRES") else {
            let required = ["HEADWATER_TEST_REQUIRE_ALL", "CI"];
            let required = required.iter().any(|name| std::env::var_os(name).is_some());
            assert!(!required, "HEADWATER_TEST_POSTGRES is not set, and nothing may be skipped");
            println!("skipped: HEADWATER_TEST_POSTGRES is not set");
            return None;
        };
        let directory = tempfile::tempdir().expect("a temporary directory");
        let separator = if server.contains('?') { '&' } else { '?' };
        let store = format!("{server}{separator}namespace=pipe_{}", uuid::Uuid::now_v7().simple());
        Some(Place::with_a_run(directory, store, server).await)
    }

    /// With a run that is registered.
    async fn with_a_run(directory: tempfile::TempDir, store: String, index_url: String) -> Self {
        let id = RunId::generate().to_string();
        let run =
            RunInfo { run_id: id.clone(), namespace: id, state: "RUNNING".into(), ..RunInfo::default() };
        let place = Place::open(directory, store, index_url, run.clone()).await;
        place.runs.register(&run).await.expect("registered");
        place
    }

    /// Writes the run's metadata into the index.
    pub(crate) async fn index_metadata(&self) {
        let index = self.index();
        MetadataWrite::create_schema(&index).await.expect("created");
        index.insert_metadata(&metadata(&self.run.run_id)).await.expect("written");
        index.close().await;
    }

    /// A place that another process has made.
    pub(crate) async fn open(
        directory: tempfile::TempDir,
        store: String,
        index_url: String,
        run: RunInfo,
    ) -> Self {
        let config = Config::default_embedded(directory.path(), None).expect("a configuration");
        let runs = Runs::open(&store).await.expect("opened");
        let open = runs.open_run(&run).await.expect("opened");
        open.create_topic(TOPIC, &TopicConfig::topic()).await.expect("created");
        open.create_queue(QUEUE, &TopicConfig::queue()).await.expect("created");
        let files = directory.path().join("files");
        let files = FileStorage::open(files.to_str().expect("text"), StorageSettings::default())
            .await
            .expect("opened");
        let bind = |port, uri: &str| {
            let uri = config.binding(uri).expect("valid");
            Bindings::default().bind("test", port, &uri, &run.run_id).expect("bound")
        };
        let announcements = open.writer(&bind("batches", "topic-write:batch-topic"));
        let ticks = open.tick_writer(&bind("ticks", "queue-out:tick-queue"), None);
        let directory_of_runs = Arc::new(runs.directory().await.expect("opened"));
        Place {
            directory,
            store,
            index_url,
            config,
            runs,
            directory_of_runs,
            run,
            open,
            files,
            announcements,
            ticks,
            deliveries: Arc::default(),
        }
    }

    pub(crate) fn run_id(&self) -> &str {
        &self.run.run_id
    }

    /// What another process needs to open it: directory, store, index, run.
    pub(crate) fn coordinates(&self) -> [String; 4] {
        let directory = self.directory.path().to_str().expect("text").to_owned();
        [directory, self.store.clone(), self.index_url.clone(), self.run.run_id.clone()]
    }

    /// A tick with so many cells.
    pub(crate) fn tick(&self, tick_number: i64, cells: u64) -> TickData {
        let cell = |flat_index| Cell { flat_index, molecule_type: 1, molecule_value: 7, ..Cell::default() };
        let cells: Vec<Cell> = (0..cells).map(cell).collect();
        let (blob, cell_count) = cells::encode_counted(&cells, Compression::default());
        TickData {
            run_id: self.run.run_id.clone(),
            tick_number,
            cell_count,
            cells: blob,
            ..TickData::default()
        }
    }

    pub(crate) async fn send_ticks(&self, ticks: &[TickData]) {
        self.ticks.send_ticks(ticks).await.expect("sent");
    }

    pub(crate) async fn write(&self, ticks: Vec<TickData>) -> BatchInfo {
        self.files.write_batch(ticks).await.expect("written")
    }

    pub(crate) async fn announce(&self, info: &BatchInfo, dedup_key: &str) {
        self.announcements.send(info, dedup_key).await.expect("sent");
    }

    /// Changes a byte of a file.
    pub(crate) async fn damage(&self, info: &BatchInfo) {
        let file = self.directory.path().join("files").join(&info.storage_key);
        let mut bytes = std::fs::read(&file).expect("read");
        *bytes.last_mut().expect("not empty") ^= 1;
        std::fs::write(&file, bytes).expect("written");
    }

    pub(crate) fn index(&self) -> Index {
        Index::open(&self.index_url, &self.run.run_id, &IndexOptions::default()).expect("opened")
    }

    /// The ticks in the index.
    pub(crate) async fn ticks(&self) -> Vec<i64> {
        let index = self.index();
        // Before the first instance has prepared its schema there is no table.
        let ticks = index.ticks(0..=i64::MAX, 1_000).await.unwrap_or_default();
        index.close().await;
        ticks
    }

    /// The cells in the index.
    pub(crate) async fn cells(&self) -> usize {
        let index = self.index();
        let mut cells = 0;
        for tick in self.ticks().await {
            cells +=
                index.cells(tick, &Selection::default()).await.expect("read").map_or(0, |cells| cells.len());
        }
        index.close().await;
        cells
    }

    /// Batches that the group has not settled; those that it has not seen too.
    pub(crate) async fn lag(&self) -> u64 {
        let groups = self.open.headwater().groups(TOPIC);
        groups.get(GROUP).await.map_or(u64::MAX, |group| group.status.lag)
    }

    pub(crate) async fn dead_letters(&self) -> u64 {
        let groups = self.open.headwater().groups(TOPIC);
        groups.get(GROUP).await.map_or(0, |group| group.status.dead_letters)
    }

    /// The attempts of all deliveries to indexers of this process.
    pub(crate) fn deliveries(&self) -> Vec<u32> {
        self.deliveries.lock().expect("no panic").clone()
    }

    pub(crate) fn indexer(
        &self,
        name: &str,
        options: IndexerOptions,
        make: impl Fn(Arc<dyn EnvironmentWrite>) -> Arc<dyn Indexer> + Send + Sync,
    ) -> BatchIndexer {
        self.indexer_with(name, options, make, |_| {})
    }

    /// The same with other parts around it.
    pub(crate) fn indexer_with(
        &self,
        name: &str,
        options: IndexerOptions,
        make: impl Fn(Arc<dyn EnvironmentWrite>) -> Arc<dyn Indexer> + Send + Sync,
        change: impl FnOnce(&mut Parts),
    ) -> BatchIndexer {
        let index = self.index();
        let mut parts = Parts {
            storage: Arc::new(self.files.clone()),
            metadata: Arc::new(index.clone()),
            tracker: Arc::new(index.clone()),
        };
        change(&mut parts);
        let bind = Arc::new(BindReal {
            name: name.to_owned(),
            config: self.config.clone(),
            runs: self.runs.clone(),
            parts,
            indexer: make(Arc::new(index.clone())),
            index,
            deliveries: Arc::clone(&self.deliveries),
        });
        let directory = Arc::clone(&self.directory_of_runs);
        BatchIndexer::new(name, directory, bind, options).expect("valid")
    }

    pub(crate) fn persistence(&self) -> Persistence {
        self.persistence_with(|announcements| announcements)
    }

    /// The same with other announcements.
    pub(crate) fn persistence_with(
        &self,
        announcing: impl Fn(Announcements) -> Announcements + Send + Sync + 'static,
    ) -> Persistence {
        let (config, runs, files) = (self.config.clone(), self.runs.clone(), self.files.clone());
        let options =
            PersistenceOptions { batch_timeout_ms: 20, batch_attempts: 1, ..PersistenceOptions::default() };
        let directory = Arc::clone(&self.directory_of_runs);
        let bind = BindQueue { config, runs, files, announcing: Box::new(announcing) };
        Persistence::new("persistence", directory, Arc::new(bind), options).expect("valid")
    }

    /// Ticks in the queue that are not acked.
    pub(crate) async fn queue_lag(&self) -> u64 {
        self.open.backlog(QUEUE).lag().await.expect("read")
    }

    /// Why ticks became dead letters.
    pub(crate) async fn refused_ticks(&self) -> Vec<String> {
        let dead_letters = self.open.headwater().dead_letters();
        let listed = dead_letters.of(QUEUE, "persistence").list(10).await.expect("read");
        listed.into_iter().map(|dead| dead.error).collect()
    }

    pub(crate) fn has_file(&self, key: &str) -> bool {
        self.directory.path().join("files").join(key).exists()
    }

    /// Writes a file without the checks of a storage.
    pub(crate) fn put_file(&self, key: &str, bytes: &[u8]) {
        let path = self.directory.path().join("files").join(key);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        std::fs::write(path, bytes).expect("written");
    }

    /// Takes the leases of the group away.
    pub(crate) async fn release_leases(&self) {
        let headwater = self.open.headwater();
        for range in headwater.groups(TOPIC).outstanding(GROUP, 100).await.expect("read") {
            if let Some(token) = range.token {
                headwater.release_lease(token).await.expect("released");
            }
        }
    }

    /// Whether the group has marked a batch as done.
    pub(crate) async fn is_marked(&self, info: &BatchInfo) -> bool {
        let index = self.index();
        // Before the first instance there is no table.
        let is_done = index.is_done(GROUP, &info.storage_key).await.unwrap_or(false);
        index.close().await;
        is_done
    }

    /// Checks that the run's store is sound and removes everything.
    pub(crate) async fn leave(self) {
        assert_eq!(self.open.headwater().doctor().await.expect("checked"), [], "the store is sound");
        let (run_id, index) = (self.run.run_id.clone(), self.index());
        self.open.close().await.expect("closed");
        self.runs.drop_run(&run_id, &self.files, index).await.expect("dropped");
        self.runs.close().await.expect("closed");
        if self.store.starts_with("postgres") {
            let base = Headwater::open_with(&self.store, OpenOptions::default()).await.expect("opened");
            base.drop_namespace().await.expect("dropped");
        }
    }
}

/// What is around an indexer.
pub(crate) struct Parts {
    pub(crate) storage: Arc<dyn BatchStorageRead>,
    pub(crate) metadata: Arc<dyn MetadataRead>,
    pub(crate) tracker: Arc<dyn IdempotencyTracker>,
}

/// Where files are announced.
pub(crate) type Announcements = Arc<dyn TopicWriter<BatchInfo>>;

/// Binds an indexer to a run of real stores.
struct BindReal {
    name: String,
    config: Config,
    runs: Runs,
    parts: Parts,
    index: Index,
    indexer: Arc<dyn Indexer>,
    deliveries: Arc<Mutex<Vec<u32>>>,
}

#[async_trait]
impl BindIndexer for BindReal {
    async fn bind(&self, run: &RunInfo) -> Result<IndexerBindings> {
        let open = self.runs.open_run(run).await?;
        let uri = self.config.binding("topic-read:batch-topic?group=environment")?;
        let binding = Bindings::default().bind(&self.name, "batches", &uri, &run.run_id)?;
        let batches = Counted { inner: open.reader(&binding), deliveries: Arc::clone(&self.deliveries) };
        Ok(IndexerBindings {
            indexer: Arc::clone(&self.indexer),
            batches: Arc::new(batches),
            group: GROUP.to_owned(),
            storage: Arc::clone(&self.parts.storage),
            metadata: Arc::clone(&self.parts.metadata),
            tracker: Some(Arc::clone(&self.parts.tracker)),
            upstream: Some(open.backlog(QUEUE)),
            closer: Box::new(CloseReal { open, index: Some(self.index.clone()) }),
        })
    }
}

struct BindQueue {
    config: Config,
    runs: Runs,
    files: FileStorage,
    announcing: Box<dyn Fn(Announcements) -> Announcements + Send + Sync>,
}

#[async_trait]
impl Bind<PersistenceBindings> for BindQueue {
    async fn bind(&self, run: &RunInfo) -> Result<PersistenceBindings> {
        let open = self.runs.open_run(run).await?;
        let bind = |port, uri: &str| {
            Bindings::default().bind("persistence", port, &self.config.binding(uri)?, &run.run_id)
        };
        let announcements = (self.announcing)(open.writer(&bind("batches", "topic-write:batch-topic")?));
        let ticks = open.tick_reader(&bind("ticks", "queue-in:tick-queue")?, 2_000, None).await?;
        let closer = Box::new(CloseReal { open, index: None });
        Ok(PersistenceBindings { ticks, storage: Arc::new(self.files.clone()), announcements, closer })
    }
}

struct CloseReal {
    open: OpenRun,
    index: Option<Index>,
}

#[async_trait]
impl Closer for CloseReal {
    async fn close(self: Box<Self>) {
        if let Some(index) = self.index {
            index.close().await;
        }
        self.open.close().await.expect("closed");
    }
}

/// Remembers the attempts of deliveries.
struct Counted {
    inner: Arc<dyn TopicReader<BatchInfo>>,
    deliveries: Arc<Mutex<Vec<u32>>>,
}

struct CountedHandler {
    inner: Arc<dyn Handler<BatchInfo>>,
    deliveries: Arc<Mutex<Vec<u32>>>,
}

#[async_trait]
impl TopicReader<BatchInfo> for Counted {
    async fn start(
        &self,
        concurrency: usize,
        handler: Arc<dyn Handler<BatchInfo>>,
    ) -> Result<Box<dyn Reading>> {
        let deliveries = Arc::clone(&self.deliveries);
        self.inner.start(concurrency, Arc::new(CountedHandler { inner: handler, deliveries })).await
    }
}

#[async_trait]
impl Handler<BatchInfo> for CountedHandler {
    async fn handle(&self, message: BatchInfo, delivery: Delivery) -> Verdict {
        self.deliveries.lock().expect("no panic").push(delivery.attempt);
        self.inner.handle(message, delivery).await
    }
}

/// Waits until something is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
