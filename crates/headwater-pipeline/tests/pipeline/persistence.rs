//! Ticks into files, and announcements of them: the order of steps, and what failures and a stop leave.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use headwater_pipeline::contracts::{BatchInfo, RunInfo};
use headwater_pipeline::persistence::{Persistence, PersistenceOptions};
use headwater_pipeline::resource::{Bind, PersistenceBindings, TopicWriter};
use headwater_pipeline::testing::{MemoryPipeline, MemoryRun, tick};
use headwater_pipeline::{Error, ErrorCode, Result};
use tokio::time::Instant;

use crate::running::{Running, start};

const TIMEOUT: Duration = Duration::from_secs(5);

fn start_with(pipeline: &MemoryPipeline, batch_size: usize) -> Running {
    let options = PersistenceOptions { batch_size, ..PersistenceOptions::default() };
    let runs = Arc::new(pipeline.runs.clone());
    start(Persistence::new("persistence", runs, Arc::new(pipeline.clone()), options).expect("valid"))
}

fn push(run: &MemoryRun, numbers: impl IntoIterator<Item = i64>) {
    run.ticks.push(numbers.into_iter().map(|number| tick(&run.run_id, number)));
}

fn files(run: &MemoryRun) -> Vec<Vec<i64>> {
    run.storage.files().into_values().collect()
}

fn away() -> Error {
    Error::transient(ErrorCode::WriteFailed, "unreachable")
}

/// Publishes only what is in storage already.
struct AfterFile {
    run: MemoryRun,
    announced: Arc<AtomicU64>,
}

#[async_trait]
impl TopicWriter<BatchInfo> for AfterFile {
    async fn send(&self, message: &BatchInfo, dedup_key: &str) -> Result<()> {
        assert_eq!(dedup_key, message.storage_key);
        assert!(self.run.storage.files().contains_key(&message.storage_key), "the file is there");
        assert_eq!(self.run.ticks.acked(), [0_i64; 0], "no tick is acked before");
        self.announced.fetch_add(1, Ordering::Relaxed);
        self.run.batches.send(message, dedup_key).await
    }
}

struct BindAfterFile(MemoryPipeline, Arc<AtomicU64>);

#[async_trait]
impl Bind<PersistenceBindings> for BindAfterFile {
    async fn bind(&self, run: &RunInfo) -> Result<PersistenceBindings> {
        let bindings: PersistenceBindings = Bind::bind(&self.0, run).await?;
        let announcements = AfterFile { run: self.0.run(&run.run_id), announced: Arc::clone(&self.1) };
        Ok(PersistenceBindings { announcements: Arc::new(announcements), ..bindings })
    }
}

#[tokio::test(start_paused = true)]
async fn batch_announced_after_file_only() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let announced = Arc::new(AtomicU64::new(0));
    let bind = Arc::new(BindAfterFile(pipeline.clone(), Arc::clone(&announced)));
    let runs = Arc::new(pipeline.runs.clone());
    let service = start(Persistence::new("p", runs, bind, PersistenceOptions::default()).expect("valid"));
    run.storage.writes.fail(3, away());
    push(&run, 0..1_000);
    run.ticks.until_acked(1_000).await;
    assert_eq!(announced.load(Ordering::Relaxed), 1);
    let info = &run.batches.messages()[0];
    assert_eq!((info.first_tick, info.last_tick, info.tick_count), (0, 999, 1_000));
    let health = service.health();
    assert_eq!(
        (health.counts.write_errors, health.counts.batches_written, health.counts.ticks_persisted),
        (3, 1, 1_000)
    );
    assert!(health.counts.bytes_written >= info.stored_bytes && info.stored_bytes > 0);
    service.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn notification_failure_is_retried() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.batches.sends.fail(4, away());
    let service = start_with(&pipeline, 10);
    push(&run, 0..10);
    run.ticks.until_acked(10).await;
    assert_eq!(run.batches.messages().len(), 1);
    assert_eq!(run.storage.writes.calls(), 1, "the file is written once");
    let health = service.health();
    assert_eq!((health.counts.notifications_failed, health.error_count), (4, 4));
    assert!(health.last_errors.iter().all(|error| error.code == "NOTIFY_FAILED"));
    service.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn file_has_batch_size_ticks_or_those_of_the_timeout() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let service = start_with(&pipeline, 10);
    let begun = Instant::now();
    push(&run, (0..25).rev());
    push(&run, [3, 24]);
    run.ticks.until_acked(20).await;
    assert!(begun.elapsed() < TIMEOUT);
    run.ticks.until_acked(27).await;
    assert_eq!(begun.elapsed(), TIMEOUT);
    let mut written: Vec<i64> = files(&run).concat();
    assert!(files(&run).iter().all(|file| file.is_sorted() && file.len() <= 10), "{:?}", files(&run));
    written.sort_unstable();
    written.dedup();
    assert_eq!(written, (0..25).collect::<Vec<_>>());
    service.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn ticks_of_two_runs_are_in_two_files() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let service = start_with(&pipeline, 4);
    run.ticks.push([tick("run_1", 0), tick("run_0", 0), tick("run_1", 1), tick("run_0", 1)]);
    run.ticks.until_acked(4).await;
    assert_eq!(files(&run), [[0, 1], [0, 1]]);
    service.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn tick_that_storage_refuses_is_buried_and_the_others_are_written() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    // An outage first: it costs nothing.
    run.storage.writes.fail(5, away());
    let service = start_with(&pipeline, 100);
    push(&run, (0..60).chain([-7]).chain(60..200));
    run.ticks.until_acked(200).await;
    run.ticks.until_buried(1).await;
    let written: BTreeSet<i64> = files(&run).concat().into_iter().collect();
    assert_eq!(written, (0..200).collect());
    assert_eq!(run.ticks.buried(), [(-7, "tick -7 of run run_1: WRITE_FAILED: tick -7 is refused".into())]);
    assert!(files(&run).len() < 20, "no file per tick: {}", files(&run).len());
    assert_eq!(service.health().counts.ticks_buried, 1);
    assert_eq!(run.ticks.unsettled(), 0);
    service.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn refused_tick_is_tried_batch_attempts_times() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let options = PersistenceOptions { batch_attempts: 5, ..PersistenceOptions::default() };
    let runs = Arc::new(pipeline.runs.clone());
    let service = start(Persistence::new("p", runs, Arc::new(pipeline.clone()), options).expect("valid"));
    push(&run, [-1]);
    run.ticks.until_buried(1).await;
    assert_eq!(service.health().counts.write_errors, 5);
    service.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn stop_leaves_no_tick_half_done() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let service = start_with(&pipeline, 10);
    // A file that cannot be announced, and ticks that are being gathered.
    run.batches.sends.fail_always(away());
    push(&run, 0..15);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let begun = Instant::now();
    service.stop().await.expect("clean");
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!((run.ticks.acked().len(), run.ticks.unsettled()), (0, 15), "all are given back");

    run.batches.sends.clear();
    let service = start_with(&pipeline, 10);
    run.ticks.until_acked(15).await;
    let announced: u64 = run.batches.messages().iter().map(|info| info.tick_count).sum();
    assert_eq!(announced, 15);
    service.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn write_that_has_begun_is_finished_at_a_stop() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.storage.writes.take(Duration::from_secs(3));
    let service = start_with(&pipeline, 10);
    push(&run, 0..10);
    tokio::time::sleep(Duration::from_secs(1)).await;
    service.stop().await.expect("clean");
    assert_eq!((run.ticks.acked().len(), run.batches.messages().len()), (10, 1));
}

#[tokio::test(start_paused = true)]
async fn crash_before_the_ack_repeats_the_batch() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.ticks.acks.take(Duration::from_secs(60));
    let doomed = start_with(&pipeline, 10);
    push(&run, 0..10);
    run.batches.until("the announcement", |topic| topic.messages().len() == 1).await;
    doomed.kill().await;
    assert_eq!(run.ticks.unsettled(), 10);

    run.ticks.acks.take(Duration::ZERO);
    let service = start_with(&pipeline, 10);
    run.ticks.until_acked(10).await;
    assert_eq!((files(&run).len(), run.batches.messages().len()), (1, 1), "the same file, announced once");
    service.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn lost_ack_is_harmless() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.ticks.acks.fail(1, Error::transient(ErrorCode::AckFailed, "lease lost"));
    let service = start_with(&pipeline, 10);
    push(&run, 0..10);
    run.ticks.until_acked(10).await;
    assert_eq!(run.batches.messages().len(), 1);
    assert_eq!(service.health().last_errors[0].code, "ACK_FAILED");
    service.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn two_instances_share_a_queue() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.storage.writes.take(Duration::from_millis(10));
    let services = [start_with(&pipeline, 10), start_with(&pipeline, 10)];
    push(&run, 0..200);
    run.ticks.until_acked(200).await;
    let announced: u64 = run.batches.messages().iter().map(|info| info.tick_count).sum();
    assert_eq!(announced, 200);
    for service in services {
        assert!(service.health().counts.ticks_persisted > 0);
        service.stop().await.expect("clean");
    }
}

#[tokio::test(start_paused = true)]
async fn run_is_finished_once_its_queue_is_empty() {
    let pipeline = MemoryPipeline::default();
    let first = pipeline.start_run("run_1").await;
    let service = start_with(&pipeline, 10);
    push(&first, 0..5);
    tokio::time::sleep(Duration::from_secs(1)).await;
    pipeline.runs.set("run_1", "ENDED");
    let second = pipeline.start_run("run_2").await;
    push(&second, 0..5);
    second.ticks.until_acked(5).await;
    assert_eq!(first.ticks.acked().len(), 5);
    assert_eq!(service.health().run, "run_2");
    service.stop().await.expect("clean");
}

#[test]
fn options_that_cannot_work_are_refused() {
    let pipeline = MemoryPipeline::default();
    let runs = Arc::new(pipeline.runs.clone());
    let refused = |name: &str, options| {
        let service = Persistence::new(name, runs.clone(), Arc::new(pipeline.clone()), options);
        service.err().expect("refused").to_string()
    };
    let ok = PersistenceOptions::default;
    assert_eq!(refused("", ok()), "the name of a service is blank");
    assert_eq!(
        refused("p", PersistenceOptions { run_id: Some("".into()), ..ok() }),
        "service p: run_id is blank"
    );
    assert_eq!(
        refused("p", PersistenceOptions { batch_size: 0, ..ok() }),
        "service p: batch_size is 0, expected at least 1"
    );
    assert_eq!(
        refused("p", PersistenceOptions { batch_timeout_ms: 0, ..ok() }),
        "service p: batch_timeout_ms is 0, expected at least 1"
    );
    assert_eq!(
        refused("p", PersistenceOptions { batch_attempts: 0, ..ok() }),
        "service p: batch_attempts is 0, expected at least 1"
    );
}
