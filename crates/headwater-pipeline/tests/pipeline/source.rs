//! The source: every tick published, the same after a crash, and held by a queue that takes no more.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use headwater_pipeline::cells::{self, Compression};
use headwater_pipeline::contracts::{SimulationMetadata, TickData};
use headwater_pipeline::health::Counter;
use headwater_pipeline::resource::{TickQueueWriter, TopicWriter};
use headwater_pipeline::service::{Service, Stop};
use headwater_pipeline::source::{SourceOptions, TidepoolSource};
use headwater_pipeline::tidepool::{Config, Tidepool};
use headwater_pipeline::{Error, ErrorCode, Result};
use tokio::sync::Semaphore;

const RUN: &str = "run_20251014_143025_550e8400e29b";
/// A wait of this length has failed.
const DEADLINE: Duration = Duration::from_secs(30);

/// A queue in memory that remembers what it was sent, repeats too.
#[derive(Default)]
struct Queue {
    ticks: Mutex<Vec<TickData>>,
    metadata: Mutex<Vec<(SimulationMetadata, String)>>,
    /// Sends wait for a permit each, if there is a gate.
    gate: Option<Semaphore>,
    /// Errors for the next sends.
    errors: Mutex<Vec<Error>>,
    /// Whether a send waits now.
    is_waiting: AtomicBool,
}

impl Queue {
    fn with_gate(permits: usize) -> Arc<Self> {
        Arc::new(Queue { gate: Some(Semaphore::new(permits)), ..Queue::default() })
    }

    fn numbers(&self) -> Vec<i64> {
        self.ticks.lock().expect("unpoisoned").iter().map(|tick| tick.tick_number).collect()
    }

    fn ticks(&self) -> Vec<TickData> {
        self.ticks.lock().expect("unpoisoned").clone()
    }

    fn metadata(&self) -> Vec<(SimulationMetadata, String)> {
        self.metadata.lock().expect("unpoisoned").clone()
    }
}

#[async_trait]
impl TickQueueWriter for Queue {
    async fn send_ticks(&self, ticks: &[TickData]) -> Result<()> {
        if let Some(gate) = &self.gate {
            self.is_waiting.store(true, Ordering::Release);
            gate.acquire().await.expect("open").forget();
            self.is_waiting.store(false, Ordering::Release);
        }
        // A crash in the middle leaves a part of them.
        for tick in ticks {
            if tick.tick_number % 7 == 3 {
                tokio::task::yield_now().await;
            }
            self.ticks.lock().expect("unpoisoned").push(tick.clone());
        }
        tokio::task::yield_now().await;
        self.errors.lock().expect("unpoisoned").pop().map_or(Ok(()), Err)
    }
}

#[async_trait]
impl TopicWriter<SimulationMetadata> for Queue {
    async fn send(&self, message: &SimulationMetadata, dedup_key: &str) -> Result<()> {
        tokio::task::yield_now().await;
        self.metadata.lock().expect("unpoisoned").push((message.clone(), dedup_key.to_owned()));
        tokio::task::yield_now().await;
        Ok(())
    }
}

fn config() -> Config {
    Config {
        dimensions: vec![20, 20],
        organisms: 5,
        organisms_max: 60,
        food_rate: 0.005,
        ..Config::default()
    }
}

fn options(directory: &Path) -> SourceOptions {
    SourceOptions {
        ticks: Some(100),
        checkpoint_directory: directory.to_owned(),
        checkpoint_every: 25,
        publish_ticks_max: 10,
        tidepool: config(),
        ..SourceOptions::default()
    }
}

fn source(queue: &Arc<Queue>, options: SourceOptions) -> TidepoolSource {
    let (metadata, ticks) = (Arc::clone(queue), Arc::clone(queue));
    TidepoolSource::new("source", RUN, options, metadata, ticks).expect("valid options")
}

/// Runs to the end.
async fn run(source: &TidepoolSource) -> Result<()> {
    let (_stopper, stop) = Stop::new();
    source.run(stop).await
}

async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A tick without the one field that is not the world's.
fn content(tick: &TickData) -> TickData {
    TickData { capture_time_ms: 0, ..tick.clone() }
}

/// What an uninterrupted world shows.
fn expected(config: &Config, ticks: u64) -> Vec<TickData> {
    let mut tidepool = Tidepool::new(config.clone()).expect("valid");
    let mut expected = Vec::new();
    for _ in 0..ticks {
        if tidepool.is_sampled() {
            expected.push(tidepool.capture(RUN, 0));
        }
        tidepool.step();
    }
    expected
}

#[tokio::test]
async fn every_tick_is_published_once_and_in_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = Arc::new(Queue::default());
    let source = source(&queue, options(directory.path()));
    assert!(!source.is_complete());
    run(&source).await.expect("complete");
    assert!(source.is_complete());
    assert_eq!(queue.ticks().iter().map(content).collect::<Vec<_>>(), expected(&config(), 100));
    let metadata = queue.metadata();
    assert_eq!(metadata.len(), 1);
    assert_eq!((metadata[0].0.run_id.as_str(), metadata[0].1.as_str()), (RUN, &*format!("{RUN}/metadata")));
    // 2025-10-14 14:30:25 UTC, as the run's id says.
    assert_eq!(metadata[0].0.start_time_ms, 1_760_452_225_000);
    // At 25, 50, 75 and 100, and at the end; the first one is written before the source counts.
    assert_eq!(source.health().get(Counter::TicksPublished), 100);
    assert_eq!(source.health().get(Counter::CheckpointsWritten), 5);
    assert_eq!(source.health().snapshot().error_count, 0);
    // Nothing is left to do for another start.
    run(&source).await.expect("complete");
    assert_eq!((queue.numbers().len(), queue.metadata().len()), (100, 1));
}

#[tokio::test]
async fn sampling_interval_limits_what_is_published() {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = Arc::new(Queue::default());
    let tidepool = Config { sampling_interval: 10, ..config() };
    run(&source(&queue, SourceOptions { tidepool: tidepool.clone(), ..options(directory.path()) }))
        .await
        .expect("complete");
    assert_eq!(queue.numbers(), (0..10).map(|n| n * 10).collect::<Vec<i64>>());
    assert_eq!(queue.ticks().iter().map(content).collect::<Vec<_>>(), expected(&tidepool, 100));
}

#[tokio::test]
async fn sparse_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = Arc::new(Queue::default());
    run(&source(&queue, options(directory.path()))).await.expect("complete");
    for tick in queue.ticks() {
        let cells = cells::decode(&tick.cells).expect("cells");
        assert_eq!(cells.len() as u64, tick.cell_count);
        assert!((50..400).contains(&tick.cell_count), "{}", tick.cell_count);
        assert!(cells.iter().all(|cell| !cell.is_empty() && cell.flat_index < 400));
    }
}

/// Polls a source so often and drops it, as a crash does. Returns whether it was complete before.
async fn run_polls(source: &TidepoolSource, polls: u32) -> bool {
    let mut left = polls;
    let mut running = pin!(run(source));
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        running.as_mut().poll(context).map(|result| {
            result.expect("no error");
            true
        })
    })
    .await
}

#[tokio::test]
async fn killed_source_publishes_every_tick_and_never_another_content() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    for case in 0..4 {
        let mut random = seed.wrapping_add(case);
        let directory = tempfile::tempdir().expect("a directory");
        let queue = Arc::new(Queue::default());
        let mut kills = 0;
        loop {
            // A linear congruence is random enough for the place of a crash.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Now and then long enough for one checkpoint at least.
            let polls = 1 + (random >> 33) as u32 % if kills % 3 == 2 { 200 } else { 40 };
            // With other threads and compression, as a person may change them between two starts.
            let compression = if kills % 2 == 0 { Compression::default() } else { Compression::NONE };
            let tidepool = Config { compression, threads: 1 + kills % 3, ..config() };
            let restarted = source(&queue, SourceOptions { tidepool, ..options(directory.path()) });
            if run_polls(&restarted, polls).await {
                break;
            }
            kills += 1;
            assert!(kills < 2_000, "seed {seed}: no progress");
        }
        assert!(kills > 0, "seed {seed}: no crash");
        let mut published = BTreeMap::new();
        for tick in queue.ticks() {
            let shown = cells::decode(&tick.cells).expect("cells");
            let tick = (TickData { cells: Default::default(), ..content(&tick) }, shown);
            let number = tick.0.tick_number;
            let first = published.entry(number).or_insert_with(|| tick.clone());
            assert!(*first == tick, "seed {seed}: tick {number} differs");
        }
        assert!(published.keys().copied().eq(0..100), "seed {seed}: {:?}", published.keys());
        let metadata = queue.metadata();
        assert!(!metadata.is_empty() && metadata.iter().all(|one| *one == metadata[0]), "seed {seed}");
    }
}

#[tokio::test]
async fn a_tick_is_repeated_only_from_the_last_checkpoint_on() {
    let directory = tempfile::tempdir().expect("a directory");
    // Groups end at 10, 20, 25, 35, 45, 50, 60: the checkpoint of 50 is written before the seventh send is allowed.
    let queue = Queue::with_gate(6);
    let killed = source(&queue, options(directory.path()));
    let (_stopper, stop) = Stop::new();
    let mut running = Box::pin(killed.run(stop));
    tokio::select! {
        result = &mut running => panic!("the gate is closed: {result:?}"),
        () = eventually("seventh send", || queue.numbers().len() == 50 && queue.is_waiting.load(Ordering::Acquire)) => {}
    }
    drop(running);
    queue.gate.as_ref().expect("a gate").add_permits(100);
    run(&source(&queue, options(directory.path()))).await.expect("complete");
    assert_eq!(queue.numbers(), (0..100).collect::<Vec<i64>>());
    assert_eq!(queue.metadata().len(), 1);
}

#[tokio::test]
async fn back_pressure_holds_the_simulation() {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = Queue::with_gate(0);
    let source = source(&queue, options(directory.path()));
    let (_stopper, stop) = Stop::new();
    let release = async {
        eventually("first send", || queue.is_waiting.load(Ordering::Acquire)).await;
        // Time in which a source without back-pressure makes all ticks; the assertions hold without it too.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(queue.numbers().is_empty());
        let released_ms = jiff::Timestamp::now().as_millisecond();
        queue.gate.as_ref().expect("a gate").add_permits(1_000);
        released_ms
    };
    let (result, released_ms) = tokio::join!(source.run(stop), release);
    result.expect("complete");
    assert_eq!(queue.numbers().len(), 100);
    // Three groups of at most 10 ticks were in memory: published, waiting, and made. All others came later.
    for tick in queue.ticks() {
        let was_made_before = tick.capture_time_ms < released_ms;
        assert!(!was_made_before || tick.tick_number < 30, "tick {}", tick.tick_number);
    }
}

#[tokio::test]
async fn failed_publication_is_repeated() {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = Arc::new(Queue::default());
    queue.errors.lock().expect("unpoisoned").push(Error::transient(ErrorCode::WriteFailed, "queue is away"));
    let source = source(&queue, options(directory.path()));
    run(&source).await.expect("complete");
    let expected: Vec<i64> = (0..10).chain(0..100).collect();
    assert_eq!(queue.numbers(), expected);
    assert_eq!(source.health().snapshot().error_count, 1);
}

#[tokio::test]
async fn permanent_error_ends_the_source_and_the_next_start_continues() {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = Arc::new(Queue::default());
    let refused = Error::permanent(ErrorCode::WriteFailed, "payload too large");
    queue.errors.lock().expect("unpoisoned").push(refused.clone());
    let source = source(&queue, options(directory.path()));
    assert_eq!(run(&source).await, Err(refused));
    assert!(!source.is_complete());
    run(&source).await.expect("complete");
    assert_eq!(queue.numbers(), (0..10).chain(0..100).collect::<Vec<i64>>());
}

#[tokio::test]
async fn stop_publishes_what_was_made_and_the_next_start_repeats_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = Arc::new(Queue::default());
    let options = SourceOptions { ticks: None, checkpoint_every: 1_000_000, ..options(directory.path()) };
    let source = source(&queue, options);
    let mut count = 0;
    for _ in 0..3 {
        let (stopper, stop) = Stop::new();
        let stopping = async {
            eventually("ticks", || queue.numbers().len() > count).await;
            stopper.stop();
        };
        let (result, ()) = tokio::join!(source.run(stop), stopping);
        result.expect("stopped");
        count = queue.numbers().len();
    }
    assert!(!source.is_complete());
    assert_eq!(queue.numbers(), (0..count as i64).collect::<Vec<i64>>());
}

#[tokio::test(start_paused = true)]
async fn stop_does_not_wait_for_a_queue_that_takes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = Queue::with_gate(0);
    let stopped = source(&queue, options(directory.path()));
    let (stopper, stop) = Stop::new();
    let stopping = async {
        eventually("first send", || queue.is_waiting.load(Ordering::Acquire)).await;
        let at = tokio::time::Instant::now();
        stopper.stop();
        at
    };
    let (result, stopped_at) = tokio::join!(stopped.run(stop), stopping);
    result.expect("stopped");
    assert!(stopped_at.elapsed() < Duration::from_secs(6), "{:?}", stopped_at.elapsed());
    queue.gate.as_ref().expect("a gate").add_permits(1_000);
    run(&source(&queue, options(directory.path()))).await.expect("complete");
    assert_eq!(queue.numbers(), (0..100).collect::<Vec<i64>>());
}

#[tokio::test]
async fn ticks_per_second_are_limited() {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = Arc::new(Queue::default());
    let limited =
        SourceOptions { ticks: Some(60), ticks_per_second: Some(200.0), ..options(directory.path()) };
    let begun = Instant::now();
    run(&source(&queue, limited)).await.expect("complete");
    // 60 at 200 per second; the wait after the last group is part of it.
    assert!(begun.elapsed() >= Duration::from_millis(299), "{:?}", begun.elapsed());
    assert_eq!(queue.numbers().len(), 60);
}

#[tokio::test]
async fn another_world_under_the_same_run_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = Arc::new(Queue::default());
    run(&source(&queue, options(directory.path()))).await.expect("complete");
    let tidepool = Config { seed: 99, ..config() };
    let other = source(&queue, SourceOptions { tidepool, ticks: Some(200), ..options(directory.path()) });
    let error = run(&other).await.expect_err("refused");
    assert!(error.code() == ErrorCode::InvalidConfiguration && error.to_string().contains(RUN), "{error}");
    assert_eq!(queue.numbers().len(), 100);
}

#[tokio::test]
async fn damaged_checkpoint_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = Arc::new(Queue::default());
    let path = directory.path().join(format!("{RUN}.checkpoint"));
    std::fs::write(&path, "no checkpoint at all").expect("written");
    let error = run(&source(&queue, options(directory.path()))).await.expect_err("refused");
    assert_eq!(error.code(), ErrorCode::DamagedFile);
    assert!(error.to_string().contains(RUN), "{error}");
}

#[tokio::test]
async fn checkpoint_that_cannot_be_written_does_not_stop_the_source() {
    let directory = tempfile::tempdir().expect("a directory");
    let below = directory.path().join("checkpoints");
    let queue = Queue::with_gate(1);
    let source = source(&queue, options(&below));
    let (_stopper, stop) = Stop::new();
    let obstruct = async {
        eventually("second send", || queue.numbers().len() == 10 && queue.is_waiting.load(Ordering::Acquire))
            .await;
        // A file in the place of the directory.
        std::fs::remove_dir_all(&below).expect("removed");
        std::fs::write(&below, "in the way").expect("written");
        queue.gate.as_ref().expect("a gate").add_permits(1_000);
    };
    let (result, ()) = tokio::join!(source.run(stop), obstruct);
    result.expect("complete");
    assert_eq!(queue.numbers().len(), 100);
    assert_eq!(source.health().get(Counter::WriteErrors), 5);
}

#[test]
fn bad_run_ids_and_options_are_refused() {
    let queue = Arc::new(Queue::default());
    let directory = tempfile::tempdir().expect("a directory");
    let refused = |run_id: &str, options: SourceOptions| {
        let (metadata, ticks) = (Arc::clone(&queue), Arc::clone(&queue));
        let source = TidepoolSource::new("source", run_id, options, metadata, ticks);
        source.map(|_| ()).expect_err("refused").code()
    };
    for run_id in ["", " ", "../run", "run"] {
        assert_eq!(refused(run_id, options(directory.path())), ErrorCode::InvalidConfiguration, "{run_id:?}");
    }
    assert_eq!(refused(RUN, SourceOptions::default()), ErrorCode::InvalidConfiguration);
}
