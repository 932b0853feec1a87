//! Ticks across batch files: when they are flushed, when their batches are acked, and what a crash or a failure leaves.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use headwater_pipeline::contracts::{SimulationMetadata, TickData};
use headwater_pipeline::indexer::{BatchIndexer, EnvironmentIndexer, Indexer, IndexerOptions};
use headwater_pipeline::testing::{MemoryPipeline, MemoryRun};
use headwater_pipeline::{Error, ErrorCode, Result};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::running::{Running, start};

const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

fn options() -> IndexerOptions {
    IndexerOptions { insert_batch_size: 250, ..IndexerOptions::default() }
}

fn start_with(pipeline: &MemoryPipeline, options: IndexerOptions) -> Running {
    let bind =
        pipeline.bind_indexer_with(|run| Arc::new(EnvironmentIndexer::new(Arc::new(run.index.clone()))));
    start(BatchIndexer::new("environment", Arc::new(pipeline.runs.clone()), bind, options).expect("valid"))
}

/// A run with three files of 100 ticks.
async fn three_hundred(pipeline: &MemoryPipeline) -> MemoryRun {
    let run = pipeline.start_run("run_1").await;
    for first in [0, 100, 200] {
        run.announce(first..first + 100).await;
    }
    run
}

fn attempts(run: &MemoryRun, offset: i64) -> Vec<u32> {
    let deliveries = run.batches.deliveries();
    deliveries.iter().filter(|delivery| delivery.offset == offset).map(|delivery| delivery.attempt).collect()
}

fn transient() -> Error {
    Error::transient(ErrorCode::WriteFailed, "connection lost")
}

#[tokio::test(start_paused = true)]
async fn buffer_100_into_250() {
    let pipeline = MemoryPipeline::default();
    let run = three_hundred(&pipeline).await;
    let begun = Instant::now();
    let indexer = start_with(&pipeline, options());
    run.batches.until_acked(&[1, 2]).await;
    assert_eq!(run.index.flush_sizes(), [250]);
    assert!(begun.elapsed() < FLUSH_TIMEOUT);
    assert_eq!(indexer.health().buffer_ticks, 50);

    run.batches.until_acked(&[1, 2, 3]).await;
    assert_eq!(run.index.flush_sizes(), [250, 50]);
    assert_eq!(begun.elapsed(), FLUSH_TIMEOUT);
    assert_eq!(run.index.ticks(), (0..300).collect::<Vec<_>>());
    let health = indexer.health();
    assert_eq!(
        (health.counts.batches_processed, health.counts.ticks_flushed, health.buffer_ticks),
        (3, 300, 0)
    );
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn timeout_flush_without_messages() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let indexer = start_with(&pipeline, options());
    run.announce(0..10).await;
    let begun = Instant::now();
    run.batches.until_acked(&[1]).await;
    assert_eq!(begun.elapsed(), FLUSH_TIMEOUT);
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn flush_when_all_slots_are_taken() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let begun = Instant::now();
    let indexer = start_with(&pipeline, IndexerOptions { buffer_files_max: 2, ..options() });
    for first in 0..4 {
        run.announce(first..first + 1).await;
    }
    run.batches.until_acked(&[1, 2, 3, 4]).await;
    assert_eq!(run.index.flush_sizes(), [2, 2]);
    assert!(begun.elapsed() < FLUSH_TIMEOUT);
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn flush_when_bytes_are_used_up() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let begun = Instant::now();
    // A tick needs some hundred bytes: a file of 100 fits, two do not.
    let indexer = start_with(&pipeline, IndexerOptions { buffer_bytes_max: 32 * 1024, ..options() });
    for first in [0, 100, 200] {
        run.announce(first..first + 100).await;
    }
    run.batches.until_acked(&[1, 2, 3]).await;
    assert!(begun.elapsed() <= FLUSH_TIMEOUT, "only the last one may have waited");
    assert!(run.index.flush_sizes().len() >= 2, "{:?}", run.index.flush_sizes());
    assert_eq!(run.index.ticks().len(), 300);
    indexer.stop().await.expect("clean");
}

/// Commits, and then never returns: the process is killed before the ack.
struct StuckAfterCommit {
    commit: EnvironmentIndexer,
    committed: Arc<Notify>,
}

#[async_trait]
impl Indexer for StuckAfterCommit {
    async fn prepare_schema(&self, metadata: Option<&SimulationMetadata>) -> Result<()> {
        self.commit.prepare_schema(metadata).await
    }

    async fn flush_ticks(&self, ticks: &[TickData]) -> Result<()> {
        self.commit.flush_ticks(ticks).await?;
        self.committed.notify_one();
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn crash_between_flush_and_ack() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.announce(0..250).await;
    let committed = Arc::new(Notify::new());
    let bind = pipeline.bind_indexer_with({
        let committed = Arc::clone(&committed);
        move |run| {
            let commit = EnvironmentIndexer::new(Arc::new(run.index.clone()));
            Arc::new(StuckAfterCommit { commit, committed: Arc::clone(&committed) })
        }
    });
    let runs = Arc::new(pipeline.runs.clone());
    let doomed = start(BatchIndexer::new("environment", runs, bind, options()).expect("valid"));
    committed.notified().await;
    assert_eq!(run.batches.acked(), [0_i64; 0]);
    run.batches.crash();
    doomed.kill().await;

    let indexer = start_with(&pipeline, options());
    run.batches.until_acked(&[1]).await;
    assert_eq!(attempts(&run, 1), [1, 2]);
    assert_eq!(run.index.ticks(), (0..250).collect::<Vec<_>>());
    assert_eq!(run.index.flush_sizes(), [250, 250], "written twice, there once");
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn crash_with_half_a_batch_buffered() {
    half_a_batch_and_a_crash(options()).await;
}

#[tokio::test(start_paused = true)]
async fn idempotency_never_skips_half_flushed_batch() {
    let run = half_a_batch_and_a_crash(IndexerOptions { enable_idempotency: true, ..options() }).await;
    assert_eq!(run.index.marked().len(), 3, "marked in the end");
}

async fn half_a_batch_and_a_crash(options: IndexerOptions) -> MemoryRun {
    let pipeline = MemoryPipeline::default();
    let run = three_hundred(&pipeline).await;
    let doomed = start_with(&pipeline, options.clone());
    run.batches.until_acked(&[1, 2]).await;
    assert_eq!(run.index.ticks().len(), 250, "50 are in memory only");
    // Time for marks of what is acked.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!run.index.marked().iter().any(|key| key.ends_with("299.pb")));
    run.batches.crash();
    doomed.kill().await;

    let begun = Instant::now();
    let indexer = start_with(&pipeline, options);
    run.batches.until_acked(&[1, 2, 3]).await;
    assert!(begun.elapsed() < FLUSH_TIMEOUT, "a batch that comes again is flushed at once");
    assert_eq!(run.index.ticks(), (0..300).collect::<Vec<_>>());
    assert_eq!(run.index.flush_sizes(), [250, 100]);
    assert_eq!((attempts(&run, 1), attempts(&run, 3)), (vec![1], vec![1, 2]));
    indexer.stop().await.expect("clean");
    run
}

#[tokio::test(start_paused = true)]
async fn failed_batch_redelivered_without_duplicates() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.announce(0..250).await;
    run.index.writes.fail(1, Error::permanent(ErrorCode::WriteFailed, "constraint violated"));
    let indexer = start_with(&pipeline, options());
    run.batches.until_acked(&[1]).await;
    assert_eq!(attempts(&run, 1), [1, 2]);
    assert_eq!(run.index.ticks(), (0..250).collect::<Vec<_>>());
    let health = indexer.health();
    assert_eq!((health.counts.batches_failed, health.counts.batches_processed), (1, 1));
    assert_eq!((health.counts.write_errors, health.error_count), (1, 1));
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn broken_batch_is_buried_alone() {
    let pipeline = MemoryPipeline::default();
    let run = three_hundred(&pipeline).await;
    run.index.refuse(150);
    let indexer = start_with(&pipeline, options());
    run.batches.until_acked(&[1, 3]).await;
    run.batches.until("the burial", |topic| !topic.buried().is_empty()).await;
    let buried = run.batches.buried();
    assert_eq!((buried.len(), buried[0].0), (1, 2));
    assert!(buried[0].1.contains("WRITE_FAILED") && buried[0].1.contains("tick 150"), "{buried:?}");
    assert_eq!(attempts(&run, 1), [1, 1], "given back once, at no cost");
    assert_eq!(attempts(&run, 2), [1, 1, 2, 3]);
    assert_eq!(run.index.ticks(), (0..100).chain(200..300).collect::<Vec<_>>());
    assert_eq!(indexer.health().counts.batches_buried, 1);
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn outage_is_waited_out_and_costs_no_attempt() {
    let pipeline = MemoryPipeline::default();
    let run = three_hundred(&pipeline).await;
    run.index.writes.fail(6, transient());
    run.storage.reads.fail(7, Error::transient(ErrorCode::ReadFailed, "storage unreachable"));
    let indexer = start_with(&pipeline, options());
    run.batches.until_acked(&[1, 2, 3]).await;
    assert_eq!(run.index.ticks().len(), 300);
    let first_attempts = run.batches.deliveries().iter().all(|delivery| delivery.attempt == 1);
    assert!(first_attempts && run.batches.deliveries().len() == 3, "{:?}", run.batches.deliveries());
    let counts = indexer.health().counts;
    assert_eq!((counts.write_errors, counts.read_errors, counts.batches_failed), (6, 7, 0));
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn connection_lost_batch_1_while_batch_2_goes_on() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.index.writes.fail(1, transient());
    run.announce(0..250).await;
    run.announce(250..500).await;
    let indexer = start_with(&pipeline, options());
    run.batches.until_acked(&[2]).await;
    assert_eq!(run.index.ticks(), (250..500).collect::<Vec<_>>());
    run.batches.until_acked(&[1, 2]).await;
    assert_eq!(run.index.ticks(), (0..500).collect::<Vec<_>>());
    assert_eq!(attempts(&run, 1), [1]);
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn redelivered_while_pending_uses_new_token() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let indexer = start_with(&pipeline, options());
    run.announce(0..10).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(indexer.health().buffer_ticks, 10);
    run.batches.lose_lease(1);
    let begun = Instant::now();
    run.batches.until_acked(&[1]).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "it comes again and is flushed at once");
    assert_eq!(attempts(&run, 1), [1, 2]);
    assert_eq!(run.index.flush_sizes(), [10], "what the former call had buffered is gone");
    run.batches.until("the former call to end", |topic| topic.leases_lost() == 1).await;
    assert_eq!(indexer.health().counts.batches_processed, 1);
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn empty_batch_acked() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.announce(5..5).await;
    let begun = Instant::now();
    let indexer = start_with(&pipeline, options());
    run.batches.until_acked(&[1]).await;
    assert!(begun.elapsed() < FLUSH_TIMEOUT);
    assert_eq!(run.index.flushes().len(), 0);
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn shutdown_within_wait() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let indexer = start_with(&pipeline, options());
    run.announce(0..10).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    run.index.writes.take(Duration::from_secs(2));
    let begun = Instant::now();
    indexer.stop().await.expect("clean");
    assert_eq!(begun.elapsed(), Duration::from_secs(2), "the time of the flush");
    assert_eq!(run.batches.acked(), [1]);
    assert_eq!(run.index.ticks().len(), 10);

    let begun = Instant::now();
    let idle = start_with(&pipeline, options());
    tokio::time::sleep(Duration::from_secs(1)).await;
    idle.stop().await.expect("clean");
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn shutdown_during_an_outage_gives_batches_back() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.storage.reads.fail_always(Error::transient(ErrorCode::ReadFailed, "storage unreachable"));
    run.announce(0..10).await;
    let indexer = start_with(&pipeline, options());
    tokio::time::sleep(Duration::from_secs(30)).await;
    let begun = Instant::now();
    indexer.stop().await.expect("clean: nothing was in hand");
    assert_eq!(begun.elapsed(), Duration::ZERO);
    run.storage.reads.clear();
    let indexer = start_with(&pipeline, options());
    run.batches.until_acked(&[1]).await;
    assert_eq!(attempts(&run, 1), [1, 1], "given back at no cost");
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn failed_final_flush_acks_nothing_and_is_an_error() {
    let pipeline = MemoryPipeline::default();
    let run = three_hundred(&pipeline).await;
    let indexer = start_with(&pipeline, IndexerOptions { insert_batch_size: 1_000, ..options() });
    tokio::time::sleep(Duration::from_secs(1)).await;
    run.index.writes.fail_always(transient());
    let error = indexer.stop().await.expect_err("the final flush failed");
    assert_eq!(error.code(), ErrorCode::WriteFailed);
    assert!(error.to_string().contains("final flush of run run_1 failed"), "{error}");
    assert_eq!((run.batches.acked().len(), run.batches.unsettled()), (0, 3));

    run.index.writes.clear();
    let indexer = start_with(&pipeline, options());
    run.batches.until_acked(&[1, 2, 3]).await;
    assert_eq!(run.index.ticks().len(), 300);
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn announcements_of_one_batch_do_not_stop_each_other() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.announce(0..10).await;
    run.announce(0..10).await;
    let indexer = start_with(&pipeline, options());
    run.batches.until_acked(&[1, 2]).await;
    assert_eq!(run.batches.deliveries().len(), 2);
    assert_eq!(run.index.ticks().len(), 10);
    indexer.stop().await.expect("clean");
}
