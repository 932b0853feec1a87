//! Runs: registered, followed and dropped.

use std::time::{Duration, Instant};

use headwater_pipeline::contracts::RunInfo;
use headwater_pipeline::contracts::TickData;
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::pipeline::Operator;
use headwater_pipeline::resource::{BatchStorageWrite, MetadataWrite, RunDirectory};
use headwater_pipeline::runs::Runs;
use headwater_pipeline::storage::{FileStorage, StorageSettings};

use crate::scene::{DEADLINE, Place, Scene, on_both, run_info};

on_both! {
    newest_run_and_newest_state_count
    waiting_service_is_woken_by_a_new_run
    run_is_dropped_after_a_dry_run_unless_it_is_used
}

async fn newest_run_and_newest_state_count(place: Place) {
    let config = place.config(&[]);
    let runs = Runs::open(&config.store).await.unwrap();
    let directory = runs.directory().await.unwrap();
    assert_eq!(directory.newest(None).await.unwrap(), None);
    let (first, second) = (run_info("STARTING"), run_info("STARTING"));
    runs.register(&first).await.unwrap();
    assert_eq!(directory.newest(None).await.unwrap().unwrap().run_id, first.run_id);
    runs.register(&second).await.unwrap();
    // A later word on an older run does not make it the newest.
    let ended = RunInfo { state: "ENDED".into(), ended_at_ms: 7, reason: "done".into(), ..first.clone() };
    runs.register(&ended).await.unwrap();
    assert_eq!(directory.newest(None).await.unwrap(), Some(second.clone()));
    assert_eq!(directory.newest(Some(&first.run_id)).await.unwrap(), Some(second.clone()));
    assert_eq!(directory.newest(Some(&second.run_id)).await.unwrap(), None);
    assert_eq!(directory.run(&first.run_id).await.unwrap(), Some(ended.clone()));
    assert_eq!(directory.run("run_x").await.unwrap(), None);
    assert_eq!(runs.list().await.unwrap(), [second, ended]);
    assert!(runs.get("run_x").await.unwrap_err().to_string().contains("no run \"run_x\""));
    runs.close().await.unwrap();
    place.remove(&[]).await;
}

async fn waiting_service_is_woken_by_a_new_run(place: Place) {
    let config = place.config(&[]);
    let runs = Runs::open(&config.store).await.unwrap();
    let directory = runs.directory().await.unwrap();
    assert_eq!(directory.newest(None).await.unwrap(), None);
    // Both waits end by one registration, long before their time is over.
    let begun = Instant::now();
    let run = run_info("STARTING");
    let register = async {
        tokio::task::yield_now().await;
        runs.register(&run).await.unwrap();
    };
    tokio::join!(directory.changed(DEADLINE), directory.changed(DEADLINE), register);
    assert!(begun.elapsed() < DEADLINE / 2, "{:?}", begun.elapsed());
    assert_eq!(directory.newest(None).await.unwrap().unwrap().run_id, run.run_id);
    // Without news it waits no longer than it is to.
    let begun = Instant::now();
    directory.changed(Duration::from_millis(20)).await;
    assert!(begun.elapsed() < DEADLINE / 2);
    runs.close().await.unwrap();
    place.remove(&[]).await;
}

async fn run_is_dropped_after_a_dry_run_unless_it_is_used(place: Place) {
    let scene = Scene::new(place).await;
    let (run_id, config) = (scene.run.run_id.clone(), scene.config.clone());
    scene.send("batch-topic", 1).await;
    scene.send("batch-topic", 2).await;
    let files = FileStorage::open(&config.storage().unwrap().url, StorageSettings::default()).await.unwrap();
    let tick = TickData { run_id: run_id.clone(), tick_number: 1, ..TickData::default() };
    files.write_batch(vec![tick]).await.unwrap();
    let index = Index::open(&config.index().unwrap().url, &run_id, &IndexOptions::default()).unwrap();
    MetadataWrite::create_schema(&index).await.unwrap();
    index.close().await;
    drop(index);

    let operator = Operator::open(config.clone()).await.unwrap();
    let used = operator.contents(&run_id).await.unwrap();
    assert_eq!(used.processes, 1);
    let refused = operator.drop_run(&run_id).await.unwrap_err().to_string();
    assert!(
        refused.contains(&format!("run {run_id} is used by 1 process; stop its services first")),
        "{refused}"
    );
    assert_eq!(operator.runs().await.unwrap().len(), 1, "it is still listed");

    let Scene { place, runs, open, .. } = scene;
    open.close().await.unwrap();
    runs.close().await.unwrap();
    let contents = operator.contents(&run_id).await.unwrap();
    assert_eq!(contents.processes, 0);
    let batches = contents.topics.iter().find(|topic| topic.topic == "batch-topic").unwrap();
    assert_eq!((batches.messages, contents.topics.len()), (2, 4));
    assert_eq!((contents.files.batches.files, contents.files.total().files), (1, 1));
    assert!(contents.index_bytes > 0 && contents.topics_bytes.unwrap() > 0, "{contents:?}");

    let dropped = operator.drop_run(&run_id).await.unwrap();
    assert_eq!(dropped.topics, contents.topics);
    assert_eq!(operator.runs().await.unwrap(), []);
    let left = operator.contents(&run_id).await.unwrap();
    assert_eq!((left.topics.len(), left.index_bytes, left.files.total().files), (0, 0, 0));
    operator.drop_run(&run_id).await.expect("a repeat removes nothing more");
    operator.close().await.unwrap();
    place.remove(&[&run_id]).await;
}
