//! Environment indexers on real stores: files, topics and the index of one run, on each database.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use headwater_pipeline::bindings::Bindings;
use headwater_pipeline::contracts::{SimulationMetadata, TickData};
use headwater_pipeline::health::Counter;
use headwater_pipeline::indexer::{EnvironmentIndexer, Indexer, IndexerOptions};
use headwater_pipeline::resource::EnvironmentWrite;
use headwater_pipeline::{Config, Error, ErrorCode, Result};

use crate::running::start;

#[path = "environment/crashes.rs"]
mod crashes;
#[path = "environment/killed.rs"]
mod killed;
#[path = "environment/place.rs"]
mod place;
#[path = "environment/recorded.rs"]
mod recorded;
#[path = "environment/scenarios.rs"]
mod scenarios;

use killed::Dies;
use place::{Place, eventually};

/// Runs a case on each database.
macro_rules! on_both {
    ($($case:ident)*) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::Place::sqlite().await).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(place) = super::Place::postgres().await {
                    super::$case(place).await;
                }
            })*
        }
    };
}

on_both! {
    end_to_end_50_75_60_cells_is_185
    same_batch_twice_still_50_cells
    two_indexers_ten_batches_500_cells
    connection_lost_batch_1_while_batch_2_goes_on
    storage_read_error
    final_flush_fails_is_error_state_and_redelivered
    clean_stop_redelivers_nothing
    kill_9_redelivers
    all_write_metrics_counted
}

/// Flushed soon: these tests do not wait for company.
fn soon() -> IndexerOptions {
    IndexerOptions { flush_timeout_ms: 20, batch_attempts: 1, ..IndexerOptions::default() }
}

fn environment(index: Arc<dyn EnvironmentWrite>) -> Arc<dyn Indexer> {
    Arc::new(EnvironmentIndexer::new(index))
}

/// Whether a flush of these ticks fails.
type Fails = Arc<dyn Fn(&[TickData]) -> bool + Send + Sync>;

/// Fails as a case demands.
struct Failing {
    inner: EnvironmentIndexer,
    fails: Fails,
}

#[async_trait]
impl Indexer for Failing {
    async fn prepare_schema(&self, metadata: Option<&SimulationMetadata>) -> Result<()> {
        self.inner.prepare_schema(metadata).await
    }

    async fn flush_ticks(&self, ticks: &[TickData]) -> Result<()> {
        if (self.fails)(ticks) {
            return Err(Error::transient(ErrorCode::WriteFailed, "connection lost"));
        }
        self.inner.flush_ticks(ticks).await
    }
}

fn failing(
    fails: impl Fn(&[TickData]) -> bool + Send + Sync + 'static,
) -> impl Fn(Arc<dyn EnvironmentWrite>) -> Arc<dyn Indexer> + Send + Sync {
    let fails: Fails = Arc::new(fails);
    move |index| Arc::new(Failing { inner: EnvironmentIndexer::new(index), fails: Arc::clone(&fails) })
}

async fn end_to_end_50_75_60_cells_is_185(place: Place) {
    // From the tick queue on: persistence, file, announcement, indexer.
    let persistence = start(place.persistence());
    let indexer = start(place.indexer("environment", soon(), environment));
    let ticks: Vec<_> = [(0, 50), (1, 75), (2, 60)].map(|(number, cells)| place.tick(number, cells)).into();
    place.send_ticks(&ticks).await;
    eventually("185 cells", async || place.cells().await == 185).await;
    assert_eq!(place.ticks().await, [0, 1, 2]);
    eventually("everything is acked", async || place.lag().await == 0).await;
    assert_eq!(persistence.health().counts.ticks_persisted, 3);
    assert_eq!(indexer.health().counts.cells_written, 185);
    indexer.stop().await.expect("clean");
    persistence.stop().await.expect("clean");
    place.leave().await;
}

async fn same_batch_twice_still_50_cells(place: Place) {
    let info = place.write(vec![place.tick(0, 50)]).await;
    place.announce(&info, "first").await;
    place.announce(&info, "second").await;
    let indexer = start(place.indexer("environment", soon(), environment));
    eventually("both are processed", async || indexer.health().counts.batches_processed == 2).await;
    assert_eq!(place.cells().await, 50);
    indexer.stop().await.expect("clean");
    assert_eq!(place.lag().await, 0);
    place.leave().await;
}

async fn two_indexers_ten_batches_500_cells(place: Place) {
    for number in 0..10 {
        let info = place.write(vec![place.tick(number, 50)]).await;
        place.announce(&info, &info.storage_key).await;
    }
    // Each takes two at a time and the flush waits for both of them: neither can take all.
    let options = IndexerOptions { buffer_files_max: 2, ..soon() };
    let both = Arc::new(tokio::sync::Barrier::new(2));
    let slow = |index: Arc<dyn EnvironmentWrite>| -> Arc<dyn Indexer> {
        let inner = EnvironmentIndexer::new(index);
        Arc::new(Together { inner, both: Arc::clone(&both), is_first: AtomicBool::new(true) })
    };
    let one = start(place.indexer("environment-1", options.clone(), slow));
    let two = start(place.indexer("environment-2", options, slow));
    eventually("all are acked", async || place.lag().await == 0).await;
    assert_eq!((place.cells().await, place.ticks().await.len()), (500, 10));
    let processed = [&one, &two].map(|indexer| indexer.health().counts.batches_processed);
    assert!(processed.iter().sum::<u64>() == 10 && processed.iter().all(|count| *count > 0), "{processed:?}");
    one.stop().await.expect("clean");
    two.stop().await.expect("clean");
    place.leave().await;
}

/// Begins its first flush when the other instance does.
struct Together {
    inner: EnvironmentIndexer,
    both: Arc<tokio::sync::Barrier>,
    is_first: AtomicBool,
}

#[async_trait]
impl Indexer for Together {
    async fn prepare_schema(&self, metadata: Option<&SimulationMetadata>) -> Result<()> {
        self.inner.prepare_schema(metadata).await
    }

    async fn flush_ticks(&self, ticks: &[TickData]) -> Result<()> {
        if self.is_first.swap(false, Ordering::Relaxed) {
            self.both.wait().await;
        }
        self.inner.flush_ticks(ticks).await
    }
}

async fn connection_lost_batch_1_while_batch_2_goes_on(place: Place) {
    for number in [1, 2] {
        let info = place.write(vec![place.tick(number, 50)]).await;
        place.announce(&info, &info.storage_key).await;
    }
    let is_lost = Arc::new(AtomicBool::new(true));
    let lost = Arc::clone(&is_lost);
    let fails = move |ticks: &[TickData]| {
        lost.load(Ordering::Relaxed) && ticks.iter().any(|tick| tick.tick_number == 1)
    };
    // One tick per flush: the batches do not share one.
    let options = IndexerOptions { insert_batch_size: 1, ..soon() };
    let indexer = start(place.indexer("environment", options, failing(fails)));
    eventually("batch 2 is there", async || place.ticks().await == [2]).await;
    is_lost.store(false, Ordering::Relaxed);
    eventually("batch 1 is there", async || place.ticks().await == [1, 2]).await;
    eventually("both are acked", async || place.lag().await == 0).await;
    let health = indexer.health();
    assert!(health.counts.write_errors > 0 && health.error_count == health.counts.write_errors);
    assert_eq!((health.counts.batches_failed, place.dead_letters().await), (0, 0), "no attempt was used");
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn storage_read_error(place: Place) {
    let broken = place.write(vec![place.tick(0, 50)]).await;
    let fine = place.write(vec![place.tick(1, 50)]).await;
    place.damage(&broken).await;
    place.announce(&broken, "broken").await;
    place.announce(&fine, "fine").await;
    let indexer = start(place.indexer("environment", soon(), environment));
    eventually("the damaged one is buried", async || place.dead_letters().await == 1).await;
    eventually("the other one is there", async || place.ticks().await == [1]).await;
    let health = indexer.health();
    assert_eq!((health.counts.read_errors, health.counts.batches_buried), (1, 1));
    assert_eq!(health.last_errors[0].code, "DAMAGED_FILE");
    assert!(health.last_errors[0].message.contains(&broken.storage_key), "{:?}", health.last_errors[0]);
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn final_flush_fails_is_error_state_and_redelivered(place: Place) {
    let info = place.write(vec![place.tick(0, 50)]).await;
    place.announce(&info, &info.storage_key).await;
    let waiting = IndexerOptions { flush_timeout_ms: 60_000, ..soon() };
    let indexer = start(place.indexer("environment", waiting, failing(|_| true)));
    eventually("the batch is buffered", async || indexer.health().buffer_ticks == 1).await;
    let error = indexer.stop().await.expect_err("the final flush failed");
    assert!(error.to_string().contains("final flush"), "{error}");
    assert_eq!((place.lag().await, place.ticks().await.len()), (1, 0));

    let indexer = start(place.indexer("environment", soon(), environment));
    eventually("it is redelivered", async || place.ticks().await == [0]).await;
    eventually("it is acked", async || place.lag().await == 0).await;
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn clean_stop_redelivers_nothing(place: Place) {
    for number in 0..3 {
        let info = place.write(vec![place.tick(number, 50)]).await;
        place.announce(&info, &info.storage_key).await;
    }
    let waiting = IndexerOptions { flush_timeout_ms: 60_000, ..soon() };
    let indexer = start(place.indexer("environment", waiting, environment));
    eventually("all are buffered", async || indexer.health().buffer_ticks == 3).await;
    indexer.stop().await.expect("clean");
    assert_eq!((place.lag().await, place.ticks().await.len()), (0, 3));

    // What comes first to the next one is what is announced after the restart.
    let again = start(place.indexer("environment", soon(), environment));
    let info = place.write(vec![place.tick(3, 50)]).await;
    place.announce(&info, &info.storage_key).await;
    eventually("the new one is there", async || place.ticks().await.len() == 4).await;
    again.stop().await.expect("clean");
    assert_eq!(place.deliveries(), [1, 1, 1, 1], "each once, at the first attempt");
    place.leave().await;
}

async fn kill_9_redelivers(place: Place) {
    let info = place.write(vec![place.tick(0, 50), place.tick(1, 50)]).await;
    place.announce(&info, &info.storage_key).await;
    killed::index_and_die(&place, Dies::AfterCommit, async || !place.ticks().await.is_empty()).await;
    assert_eq!(place.ticks().await, [0, 1], "committed");
    assert_eq!(place.lag().await, 1, "and not acked");

    let indexer = start(place.indexer("environment", soon(), environment));
    eventually("it is redelivered and acked", async || place.lag().await == 0).await;
    assert_eq!(place.deliveries(), [2], "the second attempt");
    assert_eq!((place.ticks().await.len(), place.cells().await), (2, 100), "nothing is there twice");
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn all_write_metrics_counted(place: Place) {
    let mut infos = Vec::new();
    for number in 0..4 {
        infos.push(place.write(vec![place.tick(2 * number, 30), place.tick(2 * number + 1, 20)]).await);
        place.announce(&infos[infos.len() - 1], &number.to_string()).await;
    }
    let is_first = AtomicBool::new(true);
    let fails = move |_: &[TickData]| is_first.swap(false, Ordering::Relaxed);
    let options = IndexerOptions { insert_batch_size: 2, enable_idempotency: true, ..soon() };
    let indexer = start(place.indexer("environment", options.clone(), failing(fails)));
    eventually("all are acked", async || place.lag().await == 0).await;
    let health = indexer.health();
    let counts = health.counts;
    assert_eq!((counts.batches_processed, counts.ticks_flushed, counts.cells_written), (4, 8, 200));
    assert_eq!((counts.write_errors, counts.read_errors, counts.batches_failed), (1, 0, 0));
    assert_eq!((health.error_count, health.last_errors.len()), (1, 1));
    assert_eq!((health.run.as_str(), health.service.as_str()), (place.run_id(), "environment"));
    assert!(health.cells_per_second > 0.0 && health.batches_per_second > 0.0);
    let latency = health.write_latency.expect("four writes");
    assert!(0.0 < latency.p50_ms && latency.p50_ms <= latency.p95_ms && latency.p95_ms <= latency.p99_ms);
    assert!(latency.avg_ms > 0.0);
    indexer.stop().await.expect("clean");

    // What was acked is marked: the same announcement again is skipped.
    let again = start(place.indexer("environment", options, environment));
    place.announce(&infos[0], "again").await;
    eventually("it is skipped", async || again.health().counts.batches_skipped == 1).await;
    again.stop().await.expect("clean");
    place.leave().await;
}

#[tokio::test(start_paused = true)]
async fn metrics_window_uri_over_resource_over_default() {
    let text = r#"
        [pipeline]
        store = "sqlite:tides.db"
        [resources.narrow]
        type = "index"
        metrics_window_s = 20
        [resources.plain]
        type = "index"
    "#;
    let config = Config::parse("tides.toml".as_ref(), text, &|_| None).expect("valid");
    let health = |uri: &str| {
        let binding = config.binding(uri).expect("valid");
        let bound = Bindings::default().bind("environment", "index", &binding, "run_1").expect("bound");
        Arc::clone(bound.health())
    };
    let by_uri = health("db-env-write:narrow?metrics_window_s=40");
    let all = [by_uri, health("db-env-write:narrow"), health("db-env-write:plain")];
    all.iter().for_each(|health| health.count(Counter::CellsWritten, 600));
    let rates = || all.each_ref().map(|health| health.snapshot().cells_per_second.round());
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(rates(), [20.0, 0.0, 20.0]);
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(rates(), [0.0, 0.0, 12.0]);
}
