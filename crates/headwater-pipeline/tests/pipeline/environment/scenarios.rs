//! The indexers' components on real stores, on each database. With fakes and paused time the same claims are in `indexer` and `buffering`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headwater_pipeline::contracts::{BatchInfo, FORMAT_VERSION, TickDataBatch};
use headwater_pipeline::indexer::{Components, DummyIndexer, Indexer, IndexerOptions};
use headwater_pipeline::{Error, ErrorCode};
use prost::Message as _;
use xxhash_rust::xxh3::xxh3_64;

use super::place::{Place, eventually};
use super::recorded::{Announcing, Counted, Down, Recorded};
use super::{environment, soon};
use crate::running::start;

/// Runs each case on both databases, in a place of the kind that is named.
macro_rules! on_both {
    ($($kind:ident: $($case:ident)*;)*) => {
        mod sqlite {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::$kind::sqlite().await).await;
            })*)*
        }
        mod postgres {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(place) = super::$kind::postgres().await {
                    super::$case(place).await;
                }
            })*)*
        }
    };
}

/// A place whose run has its metadata in the index.
mod ready {
    pub(super) async fn sqlite() -> super::Place {
        super::Place::sqlite().await
    }

    pub(super) async fn postgres() -> Option<super::Place> {
        super::Place::postgres().await
    }
}

/// A place whose run has none yet.
mod bare {
    pub(super) async fn sqlite() -> super::Place {
        super::Place::bare_sqlite().await.expect("a file")
    }

    pub(super) async fn postgres() -> Option<super::Place> {
        super::Place::bare_postgres().await
    }
}

on_both! {
    ready:
        batch_announced_after_file_only
        notification_failure_is_retried
        refused_tick_becomes_a_dead_letter_and_the_others_are_indexed
        dummy_with_all_components
        runs_on_after_idle
        buffer_100_into_250
        timeout_flush_without_messages
        tracker_down_on_check_and_on_mark
        known_batch_skips_storage_read
        no_buffering_one_ack_after_last_tick
        simple_metadata_only
        failed_batch_redelivered_without_duplicates
        shutdown_within_wait
        redelivered_while_pending_uses_new_token
        empty_batch_acked;
    bare:
        indexer_waits_for_metadata
        metadata_time_out_names_run
        minimal_without_components;
}

fn idempotent() -> IndexerOptions {
    IndexerOptions { enable_idempotency: true, ..soon() }
}

/// Waits for company for longer than a test takes.
fn patient() -> IndexerOptions {
    IndexerOptions { flush_timeout_ms: 60_000, ..soon() }
}

/// Writes a file of these ticks and announces it.
pub(super) async fn announce(place: &Place, ticks: std::ops::Range<i64>) -> BatchInfo {
    let info = place.write(ticks.map(|number| place.tick(number, 3)).collect()).await;
    place.announce(&info, &info.storage_key).await;
    info
}

async fn batch_announced_after_file_only(place: Place) {
    let place = Arc::new(place);
    let announced = Arc::new(AtomicU64::new(0));
    let persistence = place.persistence_with({
        let (place, announced) = (Arc::clone(&place), Arc::clone(&announced));
        move |inner| {
            let (place, announced) = (Arc::clone(&place), Arc::clone(&announced));
            let check = move |info: &BatchInfo| {
                assert!(place.has_file(&info.storage_key), "the file is there");
                announced.fetch_add(1, Ordering::Relaxed);
            };
            Arc::new(Announcing { inner, failures: Arc::default(), check })
        }
    });
    let service = start(persistence);
    place.send_ticks(&[place.tick(0, 5), place.tick(1, 5)]).await;
    eventually("acked", async || place.queue_lag().await == 0).await;
    assert!(announced.load(Ordering::Relaxed) >= 1);
    assert_eq!(service.health().counts.ticks_persisted, 2);
    service.stop().await.expect("clean");
    leave(place).await;
}

async fn notification_failure_is_retried(place: Place) {
    let place = Arc::new(place);
    let (failures, lags) = (Arc::new(AtomicU64::new(3)), Arc::new(AtomicU64::new(0)));
    let persistence = place.persistence_with({
        let (failures, lags) = (Arc::clone(&failures), Arc::clone(&lags));
        move |inner| {
            let lags = Arc::clone(&lags);
            let check = move |_: &BatchInfo| {
                lags.fetch_add(1, Ordering::Relaxed);
            };
            Arc::new(Announcing { inner, failures: Arc::clone(&failures), check })
        }
    });
    let service = start(persistence);
    place.send_ticks(&[place.tick(0, 5)]).await;
    eventually("tried", async || lags.load(Ordering::Relaxed) >= 2).await;
    assert_eq!(place.queue_lag().await, 1, "the tick is not acked before its announcement");
    eventually("acked", async || place.queue_lag().await == 0).await;
    let health = service.health();
    assert_eq!((health.counts.notifications_failed, health.counts.batches_written), (3, 1));
    assert_eq!(health.last_errors[0].code, "NOTIFY_FAILED");
    service.stop().await.expect("clean");
    leave(place).await;
}

async fn refused_tick_becomes_a_dead_letter_and_the_others_are_indexed(place: Place) {
    let persistence = start(place.persistence());
    let indexer = start(place.indexer("environment", soon(), environment));
    let ticks: Vec<_> = [0, 1, -5, 2, 3].map(|number| place.tick(number, 5)).into();
    place.send_ticks(&ticks).await;
    eventually("settled", async || place.queue_lag().await == 0).await;
    let said = format!("tick -5 of run {}: WRITE_FAILED: tick -5 of run", place.run_id());
    let refused = place.refused_ticks().await;
    assert!(refused.len() == 1 && refused[0].starts_with(&said), "{refused:?}");
    eventually("indexed", async || place.ticks().await == [0, 1, 2, 3] && place.lag().await == 0).await;
    assert_eq!(persistence.health().counts.ticks_buried, 1);
    persistence.stop().await.expect("clean");
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn leave(place: Arc<Place>) {
    Arc::into_inner(place).expect("no other user").leave().await;
}

async fn dummy_with_all_components(place: Place) {
    let dummy = Arc::new(DummyIndexer::default());
    let made = Arc::clone(&dummy);
    let make = move |_| -> Arc<dyn Indexer> { made.clone() };
    let indexer = start(place.indexer("dummy", idempotent(), make));
    let infos = [announce(&place, 0..60).await, announce(&place, 60..120).await];
    eventually("acked", async || place.lag().await == 0).await;
    assert_eq!((dummy.ticks(), dummy.cells()), (120, 360));
    eventually("marked", async || place.is_marked(&infos[0]).await && place.is_marked(&infos[1]).await).await;
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn runs_on_after_idle(place: Place) {
    let indexer = start(place.indexer("environment", soon(), environment));
    announce(&place, 0..10).await;
    eventually("acked", async || place.lag().await == 0).await;
    // Many times the flush timeout, which is the wait on the topic.
    tokio::time::sleep(Duration::from_millis(300)).await;
    announce(&place, 10..20).await;
    eventually("acked", async || place.ticks().await.len() == 20 && place.lag().await == 0).await;
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn buffer_100_into_250(place: Place) {
    let place = Arc::new(place);
    // The second flush begins by the timeout, and ends after the batches of the first are acked: not before.
    let recorded = Recorded::new(Components::ALL).before({
        let place = Arc::downgrade(&place);
        move |nth| {
            let place = place.upgrade().expect("the case runs");
            async move {
                if nth == 1 {
                    assert_eq!(place.ticks().await.len(), 250);
                    until_lag(&place, 1).await;
                }
                Ok(())
            }
        }
    });
    for first in [0, 100, 200] {
        announce(&place, first..first + 100).await;
    }
    let options = IndexerOptions { insert_batch_size: 250, flush_timeout_ms: 5_000, ..soon() };
    let indexer = start(place.indexer("environment", options, recorded.make()));
    eventually("acked", async || place.ticks().await.len() == 300 && place.lag().await == 0).await;
    assert_eq!(recorded.sizes(), [250, 50]);
    assert_eq!(indexer.health().counts.batches_processed, 3);
    indexer.stop().await.expect("clean");
    leave(place).await;
}

/// For futures of other tasks, which an asynchronous closure cannot be part of.
async fn until_lag(place: &Place, lag: u64) {
    let begun = Instant::now();
    while place.lag().await != lag {
        assert!(begun.elapsed() < Duration::from_secs(30), "lag {lag} is not reached");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn timeout_flush_without_messages(place: Place) {
    let recorded = Recorded::new(Components::ALL);
    let indexer = start(place.indexer("environment", soon(), recorded.make()));
    announce(&place, 0..10).await;
    eventually("acked", async || place.lag().await == 0).await;
    assert_eq!((recorded.sizes(), place.ticks().await.len()), (vec![10], 10));
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn tracker_down_on_check_and_on_mark(place: Place) {
    let calls = Arc::new(AtomicU64::new(0));
    let tracker = Arc::new(Down(Arc::clone(&calls)));
    let indexer =
        place.indexer_with("environment", idempotent(), environment, |parts| parts.tracker = tracker);
    let indexer = start(indexer);
    let info = announce(&place, 0..100).await;
    place.announce(&info, "again").await;
    eventually("acked", async || place.lag().await == 0).await;
    eventually("asked and marked", async || calls.load(Ordering::Relaxed) >= 4).await;
    let health = indexer.health();
    let counts = (health.counts.batches_processed, health.counts.batches_skipped, health.error_count);
    assert_eq!(counts, (2, 0, 0));
    indexer.stop().await.expect("clean");
    assert_eq!(place.ticks().await.len(), 100);
    place.leave().await;
}

async fn known_batch_skips_storage_read(place: Place) {
    let mut reads = None;
    let indexer = place.indexer_with("environment", idempotent(), environment, |parts| {
        let (counted, count) = Counted::new(&parts.storage);
        (parts.storage, reads) = (Arc::new(counted), Some(count));
    });
    let (indexer, reads) = (start(indexer), reads.expect("set"));
    let info = announce(&place, 0..100).await;
    eventually("marked", async || place.is_marked(&info).await).await;
    assert_eq!(place.lag().await, 0, "marked after the ack");
    place.announce(&info, "again").await;
    eventually("skipped", async || indexer.health().counts.batches_skipped == 1).await;
    eventually("acked", async || place.lag().await == 0).await;
    assert_eq!((reads.load(Ordering::Relaxed), indexer.health().counts.batches_processed), (1, 1));
    indexer.stop().await.expect("clean");
    place.leave().await;
}

/// Without buffering each tick is flushed alone, and until the last one the batch is not acked.
async fn one_by_one(place: Place, components: Components) {
    let place = Arc::new(place);
    let recorded = Recorded::new(components).before({
        let place = Arc::downgrade(&place);
        move |nth| {
            let place = place.upgrade().expect("the case runs");
            async move {
                assert_eq!((place.ticks().await.len(), place.lag().await), (nth, 1));
                Ok(())
            }
        }
    });
    announce(&place, 0..8).await;
    let indexer = start(place.indexer("plain", soon(), recorded.make()));
    eventually("acked", async || place.lag().await == 0).await;
    assert_eq!((recorded.sizes(), place.ticks().await.len()), (vec![1; 8], 8));
    assert_eq!(indexer.health().counts.batches_processed, 1);
    indexer.stop().await.expect("clean");
    leave(place).await;
}

async fn no_buffering_one_ack_after_last_tick(place: Place) {
    one_by_one(place, Components::METADATA).await;
}

async fn minimal_without_components(place: Place) {
    one_by_one(place, Components::NONE).await;
}

async fn simple_metadata_only(place: Place) {
    let mut reads = None;
    let recorded = Recorded::new(Components::METADATA);
    let indexer = place.indexer_with("simple", soon(), recorded.make(), |parts| {
        let (counted, count) = Counted::new(&parts.metadata);
        (parts.metadata, reads) = (Arc::new(counted), Some(count));
    });
    let (indexer, reads) = (start(indexer), reads.expect("set"));
    announce(&place, 0..3).await;
    eventually("acked", async || place.lag().await == 0).await;
    assert_eq!((reads.load(Ordering::Relaxed), recorded.sizes()), (1, vec![1; 3]));
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn failed_batch_redelivered_without_duplicates(place: Place) {
    let recorded = Recorded::new(Components::ALL).before(|nth| async move {
        match nth {
            0 => Err(Error::permanent(ErrorCode::WriteFailed, "constraint violated")),
            _ => Ok(()),
        }
    });
    announce(&place, 0..50).await;
    let options = IndexerOptions { batch_attempts: 3, ..soon() };
    let indexer = start(place.indexer("environment", options, recorded.make()));
    eventually("acked", async || place.lag().await == 0).await;
    assert_eq!((place.deliveries(), recorded.sizes()), (vec![1, 2], vec![50, 50]));
    assert_eq!((place.ticks().await.len(), place.cells().await), (50, 150));
    let counts = indexer.health().counts;
    assert_eq!((counts.batches_failed, counts.batches_processed, counts.batches_buried), (1, 1, 0));
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn shutdown_within_wait(place: Place) {
    let indexer = start(place.indexer("environment", patient(), environment));
    announce(&place, 0..10).await;
    eventually("buffered", async || indexer.health().buffer_ticks == 10).await;
    let begun = Instant::now();
    indexer.stop().await.expect("clean");
    assert!(begun.elapsed() < Duration::from_secs(30), "before its time-out: {:?}", begun.elapsed());
    assert_eq!((place.ticks().await.len(), place.lag().await), (10, 0));
    place.leave().await;
}

async fn redelivered_while_pending_uses_new_token(place: Place) {
    let recorded = Recorded::new(Components::ALL);
    let options = IndexerOptions { insert_batch_size: 20, ..patient() };
    let indexer = start(place.indexer("environment", options, recorded.make()));
    announce(&place, 0..10).await;
    eventually("buffered", async || indexer.health().buffer_ticks == 10).await;
    place.release_leases().await;
    eventually("it comes again", async || place.deliveries().len() == 2).await;
    // Flushed at once if it counts as a repeat, else with the second batch: in either case once, and acked with the new token.
    announce(&place, 10..20).await;
    eventually("indexed", async || place.ticks().await.starts_with(&(0..10).collect::<Vec<_>>())).await;
    eventually("acked", async || place.lag().await <= 1).await;
    assert!(matches!(recorded.sizes()[..], [10 | 20]), "{:?}", recorded.sizes());
    indexer.stop().await.expect("clean");
    assert_eq!(place.dead_letters().await, 0);
    place.leave().await;
}

async fn empty_batch_acked(place: Place) {
    // No storage writes such a file, but another program may.
    let run_id = place.run_id().to_owned();
    let batch = TickDataBatch { format_version: FORMAT_VERSION, run_id: run_id.clone(), ticks: Vec::new() };
    let bytes = batch.encode_to_vec();
    let info = BatchInfo {
        storage_key: format!("{run_id}/raw/batch_empty.pb"),
        run_id,
        stored_bytes: bytes.len() as u64,
        xxh3_64: xxh3_64(&bytes),
        ..BatchInfo::default()
    };
    place.put_file(&info.storage_key, &bytes);
    place.announce(&info, &info.storage_key).await;
    let recorded = Recorded::new(Components::ALL);
    let indexer = start(place.indexer("environment", patient(), recorded.make()));
    eventually("acked", async || place.lag().await == 0).await;
    assert_eq!((recorded.sizes(), place.dead_letters().await), (Vec::new(), 0));
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn indexer_waits_for_metadata(place: Place) {
    announce(&place, 0..10).await;
    let mut reads = None;
    let options = IndexerOptions { metadata_poll_interval_ms: 10, ..soon() };
    let indexer = place.indexer_with("environment", options, environment, |parts| {
        let (counted, count) = Counted::new(&parts.metadata);
        (parts.metadata, reads) = (Arc::new(counted), Some(count));
    });
    let (indexer, reads) = (start(indexer), reads.expect("set"));
    eventually("polled", async || reads.load(Ordering::Relaxed) >= 3).await;
    assert_eq!((place.deliveries().len(), place.ticks().await.len()), (0, 0));
    place.index_metadata().await;
    eventually("indexed", async || place.ticks().await.len() == 10 && place.lag().await == 0).await;
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn metadata_time_out_names_run(place: Place) {
    let options =
        IndexerOptions { metadata_poll_interval_ms: 10, metadata_max_poll_duration_ms: 100, ..soon() };
    let error =
        start(place.indexer("environment", options, environment)).ended().await.expect_err("none came");
    let run_id = place.run_id();
    assert_eq!(
        error.to_string(),
        format!("metadata of run {run_id} did not come within 100 ms: it is not in the index")
    );
    place.leave().await;
}
