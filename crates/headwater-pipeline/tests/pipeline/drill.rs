//! A small crash drill with real processes: a service of each kind is killed while a run is made. `headwater-lab pipeline --only drill`
//! is the large one.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use headwater::{Headwater, OpenOptions};
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::tidepool::{self, Tidepool};
use headwater_pipeline::{Config, Pipeline, RunId, RunningPipeline};

/// How many ticks the source makes after the last kill, at least.
const REST: i64 = 100;
/// The environment of a process of the drill: its service, and where everything is.
const SERVICE: &str = "HEADWATER_DRILL_SERVICE";
const STORE: &str = "HEADWATER_DRILL_STORE";
const DIRECTORY: &str = "HEADWATER_DRILL_DIRECTORY";
/// Each in a process of its own; those that are there twice compete.
const SERVICES: [&str; 7] = [
    "source",
    "persistence-1",
    "persistence-2",
    "environment-1",
    "environment-2",
    "metadata-persistence",
    "metadata-indexer",
];
/// Which service is killed once how many ticks are published. The source makes ticks without end until it is killed for the last time, and
/// no service has finished the run before the source: so each kill comes in the middle of the run, however slow the machine is.
const KILLS: [(i64, &str); 6] = [
    (10, "metadata-indexer"),
    (40, "persistence-1"),
    (80, "source"),
    (120, "persistence-2"),
    (240, "environment-1"),
    (280, "source"),
];
const CONFIGURATION: &str = "pipeline.toml";
const FINISHED_WITHIN: Duration = Duration::from_secs(60);

/// The configuration, with the number of ticks that the source makes if it has an end.
fn text(run_id: &RunId, ticks: Option<i64>) -> String {
    let ticks = ticks.map_or(String::new(), |ticks| format!("ticks = {ticks}"));
    let mut text = format!(
        r#"
[pipeline]
store = "${{{STORE}}}"
run_id = "{run_id}"
[control]
listen = "127.0.0.1:0"
[resources]
tick-queue = {{ type = "queue", pending_max = 40 }}
metadata-queue = {{ type = "queue" }}
batch-topic = {{ type = "topic" }}
metadata-topic = {{ type = "topic" }}
files = {{ type = "storage", url = "${{{DIRECTORY}}}/files" }}
index = {{ type = "index" }}
[services.metadata-indexer]
type = "metadata-indexer"
resources = {{ announcements = "topic-read:metadata-topic?group=metadata", storage = "storage-read:files", index = "db-meta-write:index" }}
[services.metadata-persistence]
type = "metadata-persistence"
resources = {{ metadata = "queue-in:metadata-queue", storage = "storage-write:files", announcements = "topic-write:metadata-topic" }}
[services.source]
type = "tidepool"
{ticks}
ticks_per_second = 100.0
checkpoint_directory = "${{{DIRECTORY}}}"
checkpoint_every = 30
publish_ticks_max = 10
tidepool = {{ dimensions = [12, 12], organisms = 2, organisms_max = 4 }}
resources = {{ ticks = "queue-out:tick-queue", metadata = "queue-out:metadata-queue" }}
"#
    );
    for instance in 1..=2 {
        text += &format!(
            r#"
[services.persistence-{instance}]
type = "persistence"
batch_size = 20
batch_timeout_ms = 50
resources = {{ ticks = "queue-in:tick-queue", storage = "storage-write:files", batches = "topic-write:batch-topic" }}
[services.environment-{instance}]
type = "environment-indexer"
insert_batch_size = 30
flush_timeout_ms = 50
metadata_poll_interval_ms = 20
resources = {{ batches = "topic-read:batch-topic?group=environment", storage = "storage-read:files", metadata = "db-meta-read:index", index = "db-env-write:index" }}
"#
        );
    }
    text
}

/// One process of the drill: runs a service until it ends by itself, or until its input ends with the drill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process of the drill, which starts it"]
async fn service() {
    let name = std::env::var(SERVICE).expect("started by the drill");
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    });
    let directory = PathBuf::from(std::env::var(DIRECTORY).expect("a directory"));
    let config = Config::from_file(&directory.join(CONFIGURATION))
        .expect("a configuration")
        .only(&[name])
        .expect("a service");
    let pipeline = started(config).await;
    pipeline.finished().await.expect("finished");
    pipeline.stop().await.expect("stopped");
}

/// Tries again while waiting helps: all processes start at the same moment, and one that was killed may still have its locks on a server.
async fn started(config: Config) -> RunningPipeline {
    let deadline = Instant::now() + FINISHED_WITHIN;
    loop {
        match Pipeline::from_config(config.clone()).start().await {
            Ok(pipeline) => return pipeline,
            Err(error) => assert!(error.is_transient() && Instant::now() < deadline, "not started: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The processes. Killed with their value.
struct Crew<'p> {
    place: &'p Place,
    processes: Vec<(&'static str, Option<Child>)>,
}

impl<'p> Crew<'p> {
    fn start(place: &'p Place) -> Self {
        place.configure(None);
        let mut crew = Crew { place, processes: Vec::new() };
        crew.processes = SERVICES.map(|service| (service, Some(crew.process(service)))).into();
        crew
    }

    fn process(&self, service: &str) -> Child {
        let program = std::env::current_exe().expect("this program");
        Command::new(program)
            .args(["--exact", "drill::service", "--ignored", "--quiet"])
            .env(SERVICE, service)
            .env(STORE, &self.place.store)
            .env(DIRECTORY, self.place.directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a process")
    }

    /// Kills the process of a service, which has not finished the run.
    fn kill(&mut self, service: &str) {
        let at = self.processes.iter().position(|(name, _)| *name == service).expect("one of the services");
        let process = self.processes[at].1.as_mut().expect("started");
        let ended = process.try_wait().expect("a process");
        assert_eq!(ended, None, "{service} ended before it was killed");
        process.kill().expect("killed");
        process.wait().expect("ended");
    }

    /// Starts another process of a service that was killed.
    fn start_again(&mut self, service: &str) {
        let process = self.process(service);
        let at = self.processes.iter().position(|(name, _)| *name == service).expect("one of the services");
        self.processes[at].1 = Some(process);
    }

    /// Waits until each service has finished the run.
    fn finish(mut self) {
        let deadline = Instant::now() + FINISHED_WITHIN;
        for (service, process) in &mut self.processes {
            let process = process.as_mut().expect("not ended yet");
            let status = loop {
                match process.try_wait().expect("a process") {
                    Some(status) => break status,
                    None => assert!(Instant::now() < deadline, "{service} has not finished the run"),
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            assert!(status.success(), "{service}: {status}");
        }
    }
}

impl Drop for Crew<'_> {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().filter_map(|(_, process)| process.as_mut()) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Where a drill has its store, its files and its index.
struct Place {
    directory: tempfile::TempDir,
    store: String,
    index: String,
    run_id: RunId,
}

impl Place {
    fn sqlite() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().display();
        let (store, index) = (format!("sqlite:{path}/pipeline.db"), format!("sqlite:{path}"));
        Place { directory, store, index, run_id: RunId::generate() }
    }

    /// `None`, with a printed notice, where no server is given, and a failure where nothing may be skipped.
    fn postgres() -> Option<Self> {
        let Ok(url) = std::env::var("HEADWATER_TEST_POSTGRES") else {
            let required =
                ["HEADWATER_TEST_REQUIRE_ALL", "CI"].iter().any(|name| std::env::var_os(name).is_some());
            assert!(!required, "HEADWATER_TEST_POSTGRES is not set, and nothing may be skipped");
            println!("skipped: HEADWATER_TEST_POSTGRES is not set");
            return None;
        };
        let run_id = RunId::generate();
        let separator = if url.contains('?') { '&' } else { '?' };
        let store = format!("{url}{separator}namespace=drill_{}", run_id.as_str().trim_start_matches("run_"));
        let directory = tempfile::tempdir().expect("a directory");
        Some(Place { directory, index: url, store, run_id })
    }

    /// What processes read that start from now on. One that starts at this moment reads the old text or the new one, both whole.
    fn configure(&self, ticks: Option<i64>) {
        let (file, new) = (self.directory.path().join(CONFIGURATION), self.directory.path().join("new.toml"));
        std::fs::write(&new, text(&self.run_id, ticks)).expect("written");
        std::fs::rename(&new, &file).expect("renamed");
    }

    async fn namespace(&self) -> headwater::Result<Headwater> {
        let options = OpenOptions::default().namespace(self.run_id.as_str()).create(false).maintenance(false);
        Headwater::open_with(&self.store, options).await
    }

    /// Removes what is on a server; a directory is removed by itself.
    async fn leave(self, index: Index) {
        index.remove().await.expect("removed");
        self.namespace().await.expect("the run").drop_namespace().await.expect("removed");
        let base = Headwater::open(&self.store).await.expect("the base namespace");
        base.drop_namespace().await.expect("removed");
    }
}

/// Waits until so many ticks are counted, and returns their number; `None` while they cannot be counted.
async fn until(what: &str, ticks: i64, count: impl AsyncFn() -> Option<i64>) -> i64 {
    let deadline = Instant::now() + FINISHED_WITHIN;
    loop {
        let found = count().await;
        if let Some(found) = found.filter(|found| *found >= ticks) {
            return found;
        }
        assert!(Instant::now() < deadline, "{ticks} ticks are not {what}: {found:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The ticks in the queue, done or not, once the source has created it.
async fn published(place: &Place) -> Option<i64> {
    let headwater = place.namespace().await.ok()?;
    let topics = headwater.topics().list().await;
    headwater.close().await.expect("closed");
    let queue = topics.ok()?.into_iter().find(|topic| topic.topic.name.as_str() == "tick-queue")?;
    Some(queue.head.0)
}

async fn indexed(index: &Index) -> Option<i64> {
    let (_, last) = index.tick_range().await.ok()??;
    Some(last + 1)
}

/// Each tick is there once, with the bytes of a world that no crash has touched.
async fn assert_complete(index: &Index, run_id: &RunId, count: i64) {
    let ticks = index.ticks(0..=i64::MAX, count as u64 + 1).await.expect("ticks");
    assert_eq!(ticks, (0..count).collect::<Vec<_>>());
    let config = tidepool::Config {
        dimensions: vec![12, 12],
        organisms: 2,
        organisms_max: 4,
        ..tidepool::Config::default()
    };
    let mut world = Tidepool::new(config).expect("a world");
    for tick in ticks {
        let expected = world.capture(run_id.as_str(), 0);
        let stored = index.stored(tick, None).await.expect("read").expect("indexed");
        assert_eq!(stored.blobs, [expected.cells], "tick {tick}");
        world.step();
    }
}

/// Nothing is left to do in any topic.
async fn assert_settled(place: &Place) {
    let headwater = place.namespace().await.expect("the run");
    headwater.topics().advance_heads().await.expect("advanced");
    for topic in headwater.topics().list().await.expect("topics") {
        for group in headwater.store().subscriptions(&topic.topic.name).await.expect("groups") {
            let open = (group.lag, group.leased, group.waiting, group.dead_letters);
            assert_eq!(open, (0, 0, 0, 0), "group {} of {}", group.group, topic.topic.name);
        }
    }
    headwater.close().await.expect("closed");
}

async fn drill(place: Place) {
    let index = Index::open(&place.index, place.run_id.as_str(), &IndexOptions::default()).expect("an index");
    let mut crew = Crew::start(&place);
    let mut count = 0;
    for (at, (ticks, service)) in KILLS.into_iter().enumerate() {
        until("published", ticks, async || published(&place).await).await;
        crew.kill(service);
        if at + 1 == KILLS.len() {
            // Counted while no source runs: the next one has some ticks left to make.
            count = until("published", ticks, async || published(&place).await).await + REST;
            place.configure(Some(count));
        }
        crew.start_again(service);
    }
    until("indexed", count, async || indexed(&index).await).await;
    crew.finish();
    assert_complete(&index, &place.run_id, count).await;
    assert_settled(&place).await;
    place.leave(index).await;
}

#[tokio::test]
async fn killed_services_lose_and_double_nothing_on_sqlite() {
    drill(Place::sqlite()).await;
}

#[tokio::test]
async fn killed_services_lose_and_double_nothing_on_postgres() {
    if let Some(place) = Place::postgres() {
        drill(place).await;
    }
}
