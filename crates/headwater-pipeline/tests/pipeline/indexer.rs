//! The run loop and the components of indexers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use headwater_pipeline::contracts::{SimulationMetadata, TickData};
use headwater_pipeline::indexer::{
    BatchIndexer, Components, DummyIndexer, EnvironmentIndexer, Idempotency, Indexer, IndexerOptions,
    MetadataIndexer,
};
use headwater_pipeline::metadata::MetadataOptions;
use headwater_pipeline::persistence::{MetadataPersistence, Persistence, PersistenceOptions};
use headwater_pipeline::resource::{EnvironmentWrite, TopicWriter};
use headwater_pipeline::testing::{CELLS, MemoryIndex, MemoryPipeline, MemoryRun, metadata, tick};
use headwater_pipeline::{Error, ErrorCode, Result};
use tokio::time::Instant;

use crate::running::{Running, start};

fn start_with(pipeline: &MemoryPipeline, options: IndexerOptions) -> Running {
    let bind =
        pipeline.bind_indexer_with(|run| Arc::new(EnvironmentIndexer::new(Arc::new(run.index.clone()))));
    start(BatchIndexer::new("environment", Arc::new(pipeline.runs.clone()), bind, options).expect("valid"))
}

fn idempotent() -> IndexerOptions {
    IndexerOptions { enable_idempotency: true, insert_batch_size: 100, ..IndexerOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn metadata_announced_then_indexed() {
    let pipeline = MemoryPipeline::default();
    let runs = Arc::new(pipeline.runs.clone());
    let persistence = MetadataPersistence::new(
        "metadata-persistence",
        runs.clone(),
        Arc::new(pipeline.clone()),
        MetadataOptions::default(),
    );
    let indexer = MetadataIndexer::new(
        "metadata-indexer",
        runs,
        Arc::new(pipeline.clone()),
        MetadataOptions::default(),
    );
    let (persistence, indexer) = (start(persistence.expect("valid")), start(indexer.expect("valid")));
    pipeline.runs.set("run_1", "RUNNING");
    let run = pipeline.run("run_1");
    // The announcement fails at first: the message is acked after it only.
    run.metadata.sends.fail(2, Error::transient(ErrorCode::WriteFailed, "topic unreachable"));
    run.metadata_queue.send(&metadata("run_1"), "run_1").await.expect("sent");

    run.metadata_queue.until_acked(&[1]).await;
    assert!(run.storage.has_metadata("run_1"));
    assert_eq!(run.metadata.messages()[0].storage_key, "run_1/metadata.pb");
    run.metadata.until_acked(&[1]).await;
    let index: &dyn headwater_pipeline::resource::MetadataRead = &run.index;
    assert_eq!(index.metadata("run_1").await.expect("read"), Some(metadata("run_1")));
    assert_eq!(persistence.health().counts.notifications_failed, 2);

    // Twice the same changes nothing.
    run.metadata_queue.send(&metadata("run_1"), "").await.expect("sent");
    run.metadata_queue.until_acked(&[1, 2]).await;
    assert_eq!(run.metadata.messages().len(), 1, "announced once");
    persistence.stop().await.expect("clean");
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn metadata_with_other_content_is_an_error() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let other = SimulationMetadata { seed: 7, ..metadata("run_1") };
    use headwater_pipeline::resource::BatchStorageWrite;
    let info = run.storage.write_metadata(&other).await.expect("written");
    run.metadata.send(&info, "").await.expect("sent");
    let runs = Arc::new(pipeline.runs.clone());
    let indexer = MetadataIndexer::new(
        "metadata-indexer",
        runs,
        Arc::new(pipeline.clone()),
        MetadataOptions::default(),
    );
    let indexer = start(indexer.expect("valid"));
    run.metadata.until("the burial", |topic| !topic.buried().is_empty()).await;
    assert!(run.metadata.buried()[0].1.contains("other content"), "{:?}", run.metadata.buried());
    assert_eq!(indexer.health().error_count, 3);
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn indexer_waits_for_metadata() {
    let pipeline = MemoryPipeline::default();
    pipeline.runs.set("run_1", "RUNNING");
    let run = pipeline.run("run_1");
    run.announce(0..10).await;
    run.index.metadata_reads.fail(3, Error::transient(ErrorCode::ReadFailed, "database unreachable"));
    let indexer = start_with(&pipeline, IndexerOptions::default());
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(run.batches.deliveries(), [], "nothing is read before the metadata");
    assert_eq!(run.index.world(), None, "no schema without metadata");
    let reads = run.index.metadata_reads.calls();
    assert!((200..=202).contains(&reads), "once a second: {reads}");
    run.index.set_metadata(metadata("run_1"));
    run.batches.until_acked(&[1]).await;
    assert_eq!(run.index.world().expect("prepared").sizes(), [10, 10]);
    assert_eq!(run.index.metadata_reads.calls(), reads + 1, "cached");
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn metadata_time_out_names_run() {
    let pipeline = MemoryPipeline::default();
    let indexer = start_with(&pipeline, IndexerOptions::default());
    tokio::time::sleep(Duration::from_secs(1_000)).await;
    pipeline.runs.set("run_1", "RUNNING");
    let begun = Instant::now();
    let error = indexer.ended().await.expect_err("no metadata");
    assert_eq!(begun.elapsed(), Duration::from_secs(300), "from the discovery of the run");
    assert_eq!(
        error.to_string(),
        "metadata of run run_1 did not come within 300000 ms: it is not in the index"
    );
    assert_eq!(error.code(), ErrorCode::ReadFailed);
}

#[tokio::test(start_paused = true)]
async fn dummy_with_all_components() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let dummy = Arc::new(DummyIndexer::default());
    let bind = pipeline.bind_indexer(dummy.clone());
    let indexer = BatchIndexer::new("dummy", Arc::new(pipeline.runs.clone()), bind, idempotent());
    let indexer = start(indexer.expect("valid"));
    run.announce(0..60).await;
    run.announce(60..120).await;
    run.batches.until_acked(&[1, 2]).await;
    assert_eq!((dummy.ticks(), dummy.cells(), dummy.flushes()), (120, 120 * CELLS, 2));
    indexer.stop().await.expect("clean");
    assert_eq!(run.index.marked().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn runs_on_after_idle() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let indexer = start_with(&pipeline, IndexerOptions::default());
    run.announce(0..10).await;
    run.batches.until_acked(&[1]).await;
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    run.announce(10..20).await;
    run.batches.until_acked(&[1, 2]).await;
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn tracker_down_on_check_and_on_mark() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    for faults in [&run.index.checks, &run.index.marks] {
        faults.fail_always(Error::transient(ErrorCode::ReadFailed, "table missing"));
    }
    let indexer = start_with(&pipeline, idempotent());
    run.announce(0..100).await;
    run.announce(0..100).await;
    run.batches.until_acked(&[1, 2]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(run.index.checks.calls() == 2 && run.index.marks.calls() == 2);
    let health = indexer.health();
    assert_eq!(
        (health.counts.batches_processed, health.counts.batches_skipped, health.error_count),
        (2, 0, 0)
    );
    indexer.stop().await.expect("clean");
    assert_eq!(run.index.marked().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn known_batch_skips_storage_read() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    let indexer = start_with(&pipeline, idempotent());
    run.announce(0..100).await;
    run.batches.until_acked(&[1]).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(run.index.marked(), ["run_1/raw/batch_0000000000000000000_0000000000000000099.pb"]);
    run.announce(0..100).await;
    run.batches.until_acked(&[1, 2]).await;
    assert_eq!(run.storage.reads.calls(), 1);
    assert_eq!(indexer.health().counts.batches_skipped, 1);
    assert_eq!(indexer.health().counts.batches_processed, 1);
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn batch_is_marked_after_its_ack() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.storage.reads.fail_always(Error::transient(ErrorCode::ReadFailed, "storage unreachable"));
    let indexer = start_with(&pipeline, idempotent());
    run.announce(0..100).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The first file fails once more after a longer pause; the second is read at once.
    run.storage.reads.clear();
    run.announce(100..200).await;
    run.batches.until("the second one's ack", |topic| topic.acked().contains(&2)).await;
    assert_eq!(run.index.marked().len(), 0, "not before the group's progress covers it");
    run.batches.until_acked(&[1, 2]).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(run.index.marked().len(), 2);
    indexer.stop().await.expect("clean");
}

/// Without buffering; with or without metadata.
struct Plain {
    index: MemoryIndex,
    components: Components,
}

#[async_trait]
impl Indexer for Plain {
    fn components(&self) -> Components {
        self.components
    }

    async fn prepare_schema(&self, metadata: Option<&SimulationMetadata>) -> Result<()> {
        assert_eq!(metadata.is_some(), self.components.metadata);
        Ok(())
    }

    async fn flush_ticks(&self, ticks: &[TickData]) -> Result<()> {
        self.index.write_ticks(ticks).await
    }
}

fn start_plain(pipeline: &MemoryPipeline, components: Components) -> Running {
    let bind =
        pipeline.bind_indexer_with(move |run| Arc::new(Plain { index: run.index.clone(), components }));
    let runs = Arc::new(pipeline.runs.clone());
    start(BatchIndexer::new("plain", runs, bind, IndexerOptions::default()).expect("valid"))
}

#[tokio::test(start_paused = true)]
async fn no_buffering_one_ack_after_last_tick() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.index.writes.take(Duration::from_millis(10));
    let indexer = start_plain(&pipeline, Components::METADATA);
    run.announce(0..20).await;
    let begun = Instant::now();
    run.batches.until("progress", |topic| !topic.deliveries().is_empty()).await;
    tokio::time::sleep(Duration::from_millis(195)).await;
    assert_eq!((run.index.ticks().len(), run.batches.acked().len()), (19, 0));
    run.batches.until_acked(&[1]).await;
    assert_eq!(run.index.flush_sizes(), [1; 20]);
    assert_eq!(begun.elapsed(), Duration::from_millis(200));
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn no_buffering_batch_fails_in_the_middle() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.announce(0..5).await;
    run.announce(5..10).await;
    run.index.refuse(2);
    let indexer = start_plain(&pipeline, Components::METADATA);
    run.batches.until_acked(&[2]).await;
    run.batches.until("the burial", |topic| topic.buried().len() == 1).await;
    assert_eq!(run.index.ticks(), [0, 1, 5, 6, 7, 8, 9], "ticks before the broken one stay");
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn minimal_without_components() {
    let pipeline = MemoryPipeline::default();
    pipeline.runs.set("run_1", "RUNNING");
    let run = pipeline.run("run_1");
    run.announce(0..3).await;
    let indexer = start_plain(&pipeline, Components::NONE);
    run.batches.until_acked(&[1]).await;
    assert_eq!(run.index.metadata_reads.calls(), 0);
    assert_eq!(run.index.flush_sizes(), [1; 3]);
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn simple_metadata_only() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.announce(0..3).await;
    let indexer = start_plain(&pipeline, Components::METADATA);
    run.batches.until_acked(&[1]).await;
    assert_eq!(run.index.metadata_reads.calls(), 1);
    assert_eq!(run.index.flush_sizes(), [1; 3]);
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn schema_that_cannot_be_created_is_an_error() {
    let pipeline = MemoryPipeline::default();
    let run = pipeline.start_run("run_1").await;
    run.index.schema.fail(1, Error::permanent(ErrorCode::WriteFailed, "permission denied"));
    let error = start_with(&pipeline, IndexerOptions::default()).ended().await.expect_err("no schema");
    assert_eq!(error.code(), ErrorCode::SchemaSetupFailed);
    assert_eq!(error.to_string(), "schema of run run_1 not prepared: permission denied");

    // Restartable; and a database that is away is waited for.
    run.index.schema.fail(3, Error::transient(ErrorCode::WriteFailed, "database unreachable"));
    run.announce(0..10).await;
    let indexer = start_with(&pipeline, IndexerOptions::default());
    run.batches.until_acked(&[1]).await;
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn run_is_finished_before_the_next_is_taken() {
    let pipeline = MemoryPipeline::default();
    // The run starts after the indexer.
    let indexer = start_with(&pipeline, IndexerOptions::default());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let first = pipeline.start_run("run_1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(indexer.health().run, "run_1");
    first.ticks.push((0..20).map(|number| tick("run_1", number)));
    pipeline.runs.set("run_1", "ENDED");
    let second = pipeline.start_run("run_2").await;
    second.announce(0..10).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(second.batches.deliveries(), [], "ticks of the first run are not announced yet");

    let persistence =
        Persistence::new("persistence", Arc::new(pipeline.runs.clone()), Arc::new(pipeline.clone()), {
            PersistenceOptions { run_id: Some("run_1".into()), ..PersistenceOptions::default() }
        });
    start(persistence.expect("valid")).ended().await.expect("the configured run is finished");
    assert_eq!(first.ticks.unsettled(), 0);
    second.batches.until_acked(&[1]).await;
    assert_eq!(first.batches.acked(), [1]);
    assert_eq!(first.index.ticks(), (0..20).collect::<Vec<_>>());
    assert_eq!(indexer.health().run, "run_2");
    indexer.stop().await.expect("clean");
}

#[tokio::test(start_paused = true)]
async fn configured_run_is_served_alone() {
    let pipeline = MemoryPipeline::default();
    let options = IndexerOptions { run_id: Some("run_2".into()), ..IndexerOptions::default() };
    let indexer = start_with(&pipeline, options);
    let (one, two) = (pipeline.start_run("run_1").await, pipeline.start_run("run_2").await);
    let three = pipeline.start_run("run_3").await;
    for run in [&one, &two, &three] {
        run.announce(0..10).await;
    }
    pipeline.runs.set("run_2", "FAILED");
    indexer.ended().await.expect("finished");
    let acked = |run: &MemoryRun| run.batches.acked().len();
    assert_eq!((acked(&one), acked(&two), acked(&three)), (0, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn announcement_of_another_run_is_buried() {
    let pipeline = MemoryPipeline::default();
    let (run, other) = (pipeline.start_run("run_1").await, pipeline.run("run_0"));
    let info = other.announce(0..10).await;
    run.batches.send(&info, "").await.expect("sent");
    let indexer = start_with(&pipeline, IndexerOptions::default());
    run.batches.until("the burial", |topic| topic.buried().len() == 1).await;
    let reason = &run.batches.buried()[0].1;
    assert!(reason.contains("is of run \"run_0\", but run run_1 is served"), "{reason}");
    indexer.stop().await.expect("clean");
}

#[tokio::test]
async fn components_refuse_blank_arguments() {
    let pipeline = MemoryPipeline::default();
    let runs = Arc::new(pipeline.runs.clone());
    let refused = |name: &str, options: IndexerOptions| {
        let bind = pipeline.bind_indexer(Arc::new(DummyIndexer::default()));
        let error = BatchIndexer::new(name, runs.clone(), bind, options).err().expect("refused");
        assert_eq!(error.code(), ErrorCode::InvalidConfiguration);
        error.to_string()
    };
    let ok = IndexerOptions::default;
    assert_eq!(refused(" ", ok()), "the name of a service is blank");
    assert_eq!(
        refused("i", IndexerOptions { run_id: Some(" ".into()), ..ok() }),
        "service i: run_id is blank"
    );
    for (options, name) in [
        (IndexerOptions { insert_batch_size: 0, ..ok() }, "insert_batch_size"),
        (IndexerOptions { flush_timeout_ms: 0, ..ok() }, "flush_timeout_ms"),
        (IndexerOptions { metadata_poll_interval_ms: 0, ..ok() }, "metadata_poll_interval_ms"),
        (IndexerOptions { metadata_max_poll_duration_ms: 0, ..ok() }, "metadata_max_poll_duration_ms"),
        (IndexerOptions { batch_attempts: 0, ..ok() }, "batch_attempts"),
        (IndexerOptions { buffer_files_max: 0, ..ok() }, "buffer_files_max"),
        (IndexerOptions { buffer_bytes_max: 0, ..ok() }, "buffer_bytes_max"),
    ] {
        assert_eq!(refused("i", options), format!("service i: {name} is 0, expected at least 1"));
    }
    let tracker = Arc::new(MemoryIndex::default());
    assert_eq!(
        Idempotency::new(tracker, "").err().expect("refused"),
        Error::invalid("idempotency: the group is blank")
    );
    let run = headwater_pipeline::contracts::RunInfo::default();
    let bind = pipeline.bind_indexer(Arc::new(DummyIndexer::default()));
    assert_eq!(bind.bind(&run).await.err().expect("refused"), Error::invalid("the run id is blank"));
}
