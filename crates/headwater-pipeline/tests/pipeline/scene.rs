//! A place for one case: a base namespace on either database, a run in it, and readers whose messages the test sees.
#![allow(dead_code, reason = "each module uses its part")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use headwater::{Clock, Headwater, OpenOptions};
use headwater_pipeline::RunId;
use headwater_pipeline::bindings::{BindingHandle, Bindings};
use headwater_pipeline::config::{Config, Resource, TopicConfig};
use headwater_pipeline::contracts::{BatchInfo, RunInfo};
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::resource::{Delivery, Handler, Reading, Verdict};
use headwater_pipeline::runs::{OpenRun, Runs};
use tokio::sync::mpsc;

/// Longer than anything here takes on a busy machine; a wait of this length has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The server of the tests; `None`, with a printed notice, where none is given, and a failure where nothing may be skipped.
pub(crate) fn server() -> Option<String> {
    if let Ok(url) = std::env::var("HEADWATER_TEST_POSTGRES") {
        return Some(url);
    }
    let required = ["HEADWATER_TEST_REQUIRE_ALL", "CI"].iter().any(|name| std::env::var_os(name).is_some());
    assert!(!required, "HEADWATER_TEST_POSTGRES is not set, and nothing may be skipped");
    println!("skipped: HEADWATER_TEST_POSTGRES is not set");
    None
}

/// Waits until something is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A new run.
pub(crate) fn run_info(state: &str) -> RunInfo {
    let id = RunId::generate();
    RunInfo {
        run_id: id.to_string(),
        namespace: id.to_string(),
        started_at_ms: id.started_at().as_millisecond(),
        state: state.into(),
        ..RunInfo::default()
    }
}

/// Where a case stores everything.
pub(crate) struct Place {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) store: String,
    is_server: bool,
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = format!("sqlite:{}", directory.path().join("base.db").display());
        Place { directory, store, is_server: false }
    }

    pub(crate) fn postgres() -> Option<Self> {
        let url = server()?;
        let namespace = format!("pipe_{}", uuid::Uuid::now_v7().simple());
        let store = format!("{url}{}namespace={namespace}", if url.contains('?') { '&' } else { '?' });
        Some(Place { directory: tempfile::tempdir().expect("a directory"), store, is_server: true })
    }

    /// A configuration of this place, with the built-in services and these changes of its text.
    pub(crate) fn config(&self, changes: &[(&str, &str)]) -> Config {
        let directory = self.directory.path().display().to_string();
        let mut text = Config::embedded_text().replace("sqlite:${DIRECTORY}/pipeline.db", &self.store);
        if self.is_server {
            text = text.replace(
                "type = \"tidepool\"",
                "type = \"tidepool\"\ncheckpoint_directory = \"${DIRECTORY}\"",
            );
        }
        for (from, to) in changes {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        let lookup = move |name: &str| (name == "DIRECTORY").then(|| directory.clone());
        Config::parse("test.toml".as_ref(), &text, &lookup).expect("a sound configuration")
    }

    /// Removes what the case has left on a server.
    pub(crate) async fn remove(self, runs: &[&str]) {
        if !self.is_server {
            return;
        }
        let config = self.config(&[]);
        for run in runs {
            let options = OpenOptions::default().namespace(*run).create(false);
            if let Ok(store) = Headwater::open_with(&self.store, options).await {
                store.drop_namespace().await.expect("dropped");
            }
            let index = config.index().expect("declared");
            Index::open(&index.url, run, &IndexOptions::default())
                .expect("sound")
                .remove()
                .await
                .expect("removed");
        }
        if let Ok(base) = Headwater::open_with(&self.store, OpenOptions::default().create(false)).await {
            base.drop_namespace().await.expect("dropped");
        }
    }
}

/// A run that is open, with the topics and queues of the built-in configuration.
pub(crate) struct Scene {
    pub(crate) place: Place,
    pub(crate) config: Config,
    pub(crate) runs: Runs,
    pub(crate) run: RunInfo,
    pub(crate) open: OpenRun,
    pub(crate) bindings: Bindings,
    readers: std::cell::Cell<usize>,
}

impl Scene {
    pub(crate) async fn new(place: Place) -> Self {
        Scene::with(place, &[], Clock::default()).await
    }

    pub(crate) async fn with(place: Place, changes: &[(&str, &str)], clock: Clock) -> Self {
        let config = place.config(changes);
        let runs = Runs::open_with_clock(&config.store, clock).await.expect("opened");
        let run = run_info("RUNNING");
        runs.register(&run).await.expect("registered");
        let open = runs.open_run(&run).await.expect("opened");
        let scene = Scene {
            place,
            config,
            runs,
            run,
            open,
            bindings: Bindings::default(),
            readers: std::cell::Cell::new(0),
        };
        scene.create(&scene.open).await;
        scene
    }

    pub(crate) async fn create(&self, open: &OpenRun) {
        for resource in &self.config.resources {
            match &resource.resource {
                Resource::Topic(topic) => open.create_topic(&resource.name, topic).await.expect("created"),
                Resource::Queue(queue) => {
                    open.create_queue(&resource.name, &queue.delivery).await.expect("created");
                }
                _ => {}
            }
        }
    }

    pub(crate) async fn create_topic(&self, name: &str) {
        self.open.create_topic(name, &TopicConfig::topic()).await.expect("created");
    }

    /// A binding of a service of its own.
    pub(crate) fn binding(&self, uri: &str) -> Arc<BindingHandle> {
        self.readers.set(self.readers.get() + 1);
        let service = format!("service-{}", self.readers.get());
        let binding = self.config.binding(uri).expect("a sound URI");
        self.bindings.bind(&service, "port", &binding, &self.run.run_id).expect("bound")
    }

    /// The run in another process, which the test lets die: it is closed without the end of what it holds.
    pub(crate) async fn other_process(&self, clock: Clock) -> Headwater {
        let options = OpenOptions::default().namespace(&self.run.namespace).clock(clock).maintenance(false);
        Headwater::open_with(&self.config.store, options).await.expect("opened")
    }

    pub(crate) async fn send(&self, topic: &str, tick: i64) {
        let writer = self.open.writer(&self.binding(&format!("topic-write:{topic}")));
        writer.send(&batch(tick), &format!("{topic}/{tick}")).await.expect("sent");
    }

    /// Reads as a group; every message is done.
    pub(crate) async fn read(&self, topic: &str, group: &str) -> Reader {
        self.read_with(topic, group, 4, |_, _| Verdict::Done).await
    }

    pub(crate) async fn read_with(
        &self,
        topic: &str,
        group: &str,
        concurrency: usize,
        verdict: impl Fn(&BatchInfo, Delivery) -> Verdict + Send + Sync + 'static,
    ) -> Reader {
        let binding = self.binding(&format!("topic-read:{topic}?group={group}"));
        let (sender, received) = mpsc::unbounded_channel();
        let handler = Arc::new(Collect { sender, verdict });
        let reading =
            self.open.reader::<BatchInfo>(&binding).start(concurrency, handler).await.expect("started");
        Reader { binding, reading, received }
    }

    pub(crate) async fn end(self) {
        let run = self.run.run_id.clone();
        self.open.close().await.expect("closed");
        self.runs.close().await.expect("closed");
        self.place.remove(&[&run]).await;
    }
}

/// An announcement that is recognised by its first tick.
pub(crate) fn batch(tick: i64) -> BatchInfo {
    BatchInfo {
        run_id: "run".into(),
        storage_key: format!("run/raw/{tick}"),
        first_tick: tick,
        last_tick: tick + 9,
        tick_count: 10,
        written_at_ms: 1,
        stored_bytes: 2,
        xxh3_64: 3,
    }
}

struct Collect<F> {
    sender: mpsc::UnboundedSender<(BatchInfo, Delivery)>,
    verdict: F,
}

#[async_trait]
impl<F: Fn(&BatchInfo, Delivery) -> Verdict + Send + Sync> Handler<BatchInfo> for Collect<F> {
    async fn handle(&self, message: BatchInfo, delivery: Delivery) -> Verdict {
        let verdict = (self.verdict)(&message, delivery);
        let _ = self.sender.send((message, delivery));
        verdict
    }
}

/// A reader and what it has received.
pub(crate) struct Reader {
    pub(crate) binding: Arc<BindingHandle>,
    pub(crate) reading: Box<dyn Reading>,
    received: mpsc::UnboundedReceiver<(BatchInfo, Delivery)>,
}

impl Reader {
    /// The next message.
    pub(crate) async fn next(&mut self) -> (BatchInfo, Delivery) {
        let next = tokio::time::timeout(DEADLINE, self.received.recv()).await;
        next.expect("a message in time").expect("the reader runs")
    }

    /// The first ticks of the next messages.
    pub(crate) async fn ticks(&mut self, count: usize) -> Vec<i64> {
        let mut ticks = Vec::new();
        for _ in 0..count {
            ticks.push(self.next().await.0.first_tick);
        }
        ticks
    }

    /// What has come and was not taken.
    pub(crate) fn rest(&mut self) -> Vec<i64> {
        std::iter::from_fn(|| self.received.try_recv().ok()).map(|(batch, _)| batch.first_tick).collect()
    }

    /// Waits until the group has done everything.
    pub(crate) async fn until_done(&self) {
        eventually("lag 0", async || self.reading.lag().await.expect("read") == 0).await;
    }

    pub(crate) async fn stop(self) {
        self.reading.stop(Duration::from_secs(5)).await.expect("stopped");
    }
}

/// Runs each case on both databases.
macro_rules! on_both {
    ($($case:ident)*) => {
        $(mod $case {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                super::$case($crate::scene::Place::sqlite()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                if let Some(place) = $crate::scene::Place::postgres() {
                    super::$case(place).await;
                }
            }
        })*
    };
}
pub(crate) use on_both;
