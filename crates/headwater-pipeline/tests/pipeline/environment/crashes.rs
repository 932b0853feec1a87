//! Indexers that are killed with ticks in hand, on each database; and metadata on its way from the source to the index.

use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater::Clock;
use headwater_pipeline::Pipeline;
use headwater_pipeline::contracts::{BatchInfo, SimulationMetadata};
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::indexer::IndexerOptions;
use headwater_pipeline::resource::{MetadataRead, TopicWriter};
use headwater_pipeline::testing::metadata;

use super::killed::{self, Dies};
use super::place::{Place, eventually};
use super::scenarios::announce;
use super::{environment, soon};
use crate::running::start;
use crate::scene::{self, Scene};

/// Marks follow acks, several times in this time.
const MARKED_WITHIN: Duration = Duration::from_secs(2);

mod sqlite {
    use super::Place;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn crash_between_flush_and_ack() {
        super::crash_between_flush_and_ack(Place::sqlite().await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn crash_with_half_a_batch_buffered() {
        super::crash_with_half_a_batch_buffered(Place::sqlite().await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn idempotency_never_skips_half_flushed_batch() {
        super::idempotency_never_skips_half_flushed_batch(Place::sqlite().await).await;
    }
}

mod postgres {
    use super::Place;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn crash_between_flush_and_ack() {
        if let Some(place) = Place::postgres().await {
            super::crash_between_flush_and_ack(place).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn crash_with_half_a_batch_buffered() {
        if let Some(place) = Place::postgres().await {
            super::crash_with_half_a_batch_buffered(place).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn idempotency_never_skips_half_flushed_batch() {
        if let Some(place) = Place::postgres().await {
            super::idempotency_never_skips_half_flushed_batch(place).await;
        }
    }
}

scene::on_both! {
    metadata_announced_then_indexed
}

async fn crash_between_flush_and_ack(place: Place) {
    announce(&place, 0..250).await;
    killed::index_and_die(&place, Dies::AfterCommit, async || place.ticks().await.len() == 250).await;
    assert_eq!(place.lag().await, 1, "committed and not acked");
    let indexer = start(place.indexer("environment", soon(), environment));
    eventually("redelivered and acked", async || place.lag().await == 0).await;
    assert_eq!(place.deliveries(), [2]);
    assert_eq!((place.ticks().await.len(), place.cells().await), (250, 750), "none is there twice");
    indexer.stop().await.expect("clean");
    place.leave().await;
}

/// Three files of 100 ticks, of which the killed process has flushed 250 and acked two.
async fn half_a_batch(place: &Place, dies: Dies) -> [BatchInfo; 3] {
    let infos =
        [announce(place, 0..100).await, announce(place, 100..200).await, announce(place, 200..300).await];
    let mut flushed_at = None;
    killed::index_and_die(place, dies, async || {
        if place.ticks().await.len() != 250 || place.lag().await != 1 {
            return false;
        }
        // Time for marks, of which there are none if the first batch is the one that is left.
        let since = flushed_at.get_or_insert_with(Instant::now).elapsed();
        dies != Dies::WithTicksBufferedAndMarks || since > MARKED_WITHIN || place.is_marked(&infos[0]).await
    })
    .await;
    infos
}

async fn crash_with_half_a_batch_buffered(place: Place) {
    half_a_batch(&place, Dies::WithTicksBuffered).await;
    let patient = IndexerOptions { flush_timeout_ms: 60_000, ..soon() };
    let indexer = start(place.indexer("environment", patient, environment));
    // Far sooner than the timeout: what comes again is flushed at once.
    eventually("redelivered and acked", async || place.lag().await == 0).await;
    assert_eq!(place.deliveries(), [2], "only the third batch");
    assert_eq!(place.ticks().await, (0..300).collect::<Vec<_>>());
    assert_eq!(place.cells().await, 900);
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn idempotency_never_skips_half_flushed_batch(place: Place) {
    let infos = half_a_batch(&place, Dies::WithTicksBufferedAndMarks).await;
    // Files are read side by side, so any of them may be the last in the buffer.
    let flushed = place.ticks().await;
    let is_whole = |info: &&BatchInfo| (info.first_tick..=info.last_tick).all(|tick| flushed.contains(&tick));
    let half = infos.iter().find(|info| !is_whole(info)).expect("50 ticks are missing");
    assert!(!place.is_marked(half).await, "half of it was flushed");
    let options = IndexerOptions { enable_idempotency: true, ..soon() };
    let indexer = start(place.indexer("environment", options, environment));
    eventually("redelivered and acked", async || place.lag().await == 0).await;
    assert_eq!(place.ticks().await, (0..300).collect::<Vec<_>>());
    assert_eq!(indexer.health().counts.batches_skipped, 0);
    eventually("marked in the end", async || place.is_marked(half).await).await;
    indexer.stop().await.expect("clean");
    place.leave().await;
}

async fn metadata_announced_then_indexed(place: scene::Place) {
    let once = ("type = \"metadata-persistence\"", "type = \"metadata-persistence\"\nbatch_attempts = 1");
    let scene = Scene::with(place, &[once], Clock::default()).await;
    let run_id = scene.run.run_id.clone();
    let services = ["metadata-indexer".to_owned(), "metadata-persistence".to_owned()];
    let pipeline = Pipeline::from_config(scene.config.clone().only(&services).expect("configured"));
    let pipeline = pipeline.start().await.expect("started");
    let queue: Arc<dyn TopicWriter<SimulationMetadata>> =
        scene.open.writer(&scene.binding("queue-out:metadata-queue"));
    queue.send(&metadata(&run_id), "first").await.expect("sent");

    let url = &scene.config.index().expect("declared").url;
    let index = Index::open(url, &run_id, &IndexOptions::default()).expect("an index");
    // The table may be created at this moment.
    let indexed = async || index.metadata(&run_id).await.ok().flatten() == Some(metadata(&run_id));
    eventually("indexed", indexed).await;
    let headwater = scene.open.headwater();
    assert_eq!(headwater.published("metadata-topic").await.expect("read").len(), 1);
    let file = scene.place.directory.path().join("files").join(&run_id).join("metadata.pb");
    assert!(file.exists(), "the file is what was announced");

    // The same again is announced under the same key: it changes nothing.
    queue.send(&metadata(&run_id), "second").await.expect("sent");
    let lag = async |topic: &str, group: &str| {
        headwater.topics().advance_heads().await.expect("advanced");
        headwater.groups(topic).get(group).await.expect("a group").status
    };
    eventually("handled", async || lag("metadata-queue", "persistence").await.lag == 0).await;
    eventually("acked", async || lag("metadata-topic", "metadata").await.lag == 0).await;
    assert_eq!(headwater.published("metadata-topic").await.expect("read").len(), 1, "announced once");

    // Other content of the same run is refused and becomes a dead letter; the pipeline continues.
    let other = SimulationMetadata { seed: 99, ..metadata(&run_id) };
    queue.send(&other, "other").await.expect("sent");
    eventually("buried", async || lag("metadata-queue", "persistence").await.dead_letters == 1).await;
    index.close().await;
    let ended = tokio::time::timeout(Duration::from_secs(20), pipeline.stop()).await;
    ended.expect("in time").expect("stopped");
    scene.end().await;
}
