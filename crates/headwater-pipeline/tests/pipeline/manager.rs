//! Whole pipelines: from configuration to index, controlled over HTTP.

use std::time::Duration;

use headwater::{Headwater, OpenOptions};
use headwater_pipeline::bindings::UsageState;
use headwater_pipeline::control::Client;
use headwater_pipeline::index::select::Selection;
use headwater_pipeline::manager::{Action, ServiceState};
use headwater_pipeline::pipeline::{Operator, Stopped};
use headwater_pipeline::{Pipeline, RunningPipeline};

use crate::scene::{DEADLINE, Place, eventually, on_both};

on_both! {
    all_ticks_are_indexed
    services_are_controlled_over_http
    done_ticks_are_removed_before_the_last_process_leaves
    claim_checks_are_swept_while_a_pipeline_runs
}

/// A small world, and batches that do not wait.
const SMALL: [(&str, &str); 3] = [
    (
        "type = \"tidepool\"",
        "type = \"tidepool\"\nticks = 40\ntidepool = { dimensions = [20, 20], organisms = 4, seed = 7 }",
    ),
    ("batch_timeout_ms = 1000", "batch_timeout_ms = 50\nbatch_size = 16"),
    ("flush_timeout_ms = 1000", "flush_timeout_ms = 50"),
];

async fn until_finished(pipeline: &RunningPipeline) {
    tokio::time::timeout(DEADLINE, pipeline.finished()).await.expect("finished in time").unwrap();
}

async fn all_ticks_are_indexed(place: Place) {
    let config = place.config(&SMALL);
    let pipeline = Pipeline::from_config(config.clone()).start().await.unwrap();
    until_finished(&pipeline).await;
    let progress = pipeline.progress().await;
    let run_id = progress.run_id.clone().unwrap();
    assert_eq!((progress.ticks_published, progress.ticks_persisted), (40, 40));
    assert_eq!((progress.ticks_indexed, progress.organism_ticks_indexed), (40, 40));
    assert!(progress.files >= 3 && progress.cells_indexed > 0, "{progress:?}");
    let resources = pipeline.bindings().resources();
    let queue = resources.iter().find(|resource| resource.resource == "tick-queue").unwrap();
    assert_eq!((queue.health.counts.messages_sent, queue.health.counts.messages_done), (40, 40));
    assert_eq!(pipeline.runs().get(&run_id).await.unwrap().state, "ENDED");
    let Stopped { services: ended, progress } = pipeline.stop().await.unwrap();
    assert!(progress.lags.len() > 3 && progress.lags.iter().all(|lag| lag.messages == 0), "{progress:?}");
    assert!(ended.iter().all(|status| status.state == ServiceState::Stopped), "{ended:?}");
    assert!(ended.iter().all(|status| status.health.error_count == 0), "{ended:?}");

    let operator = Operator::open(config).await.unwrap();
    assert_eq!(operator.indexed_ticks(&run_id).await.unwrap(), Some((0, 39)));
    assert_eq!(operator.check_storage(&run_id).await.unwrap(), []);
    let (world, cells) = operator.cells(&run_id, 39, |_| Ok(Selection::default())).await.unwrap().unwrap();
    assert_eq!(world.cells(), 400);
    assert!(!cells.is_empty());
    assert!(operator.cells(&run_id, 40, |_| Ok(Selection::default())).await.unwrap().is_none());
    assert_eq!(operator.sweep_claims(None).await.unwrap().len(), 1);
    operator.close().await.unwrap();
    place.remove(&[&run_id]).await;
}

async fn services_are_controlled_over_http(place: Place) {
    let endless = (
        "type = \"tidepool\"",
        "type = \"tidepool\"\nticks_per_second = 100\ntidepool = { dimensions = [20, 20], organisms = 4 }",
    );
    let config = place.config(&[endless, SMALL[1], SMALL[2]]);
    let pipeline = Pipeline::from_config(config).start().await.unwrap();
    let client = Client::new(pipeline.control_address());
    let state = async |service: &str| {
        let all = client.services().await.unwrap();
        all.into_iter().find(|status| status.service == service).unwrap().state
    };
    assert_eq!(state("source").await, ServiceState::Running);
    eventually("indexed", async || pipeline.progress().await.ticks_indexed > 0).await;

    let paused = client.act(Action::Pause, Some("environment-indexer")).await.unwrap();
    assert_eq!((paused.len(), paused[0].state), (1, ServiceState::Paused));
    let before = pipeline.progress().await;
    eventually("files are still written", async || pipeline.progress().await.files > before.files).await;
    assert_eq!(pipeline.progress().await.ticks_indexed, before.ticks_indexed, "it claims nothing");
    let refused = client.act(Action::Pause, Some("environment-indexer")).await.unwrap_err();
    assert_eq!(refused.to_string(), "service environment-indexer is PAUSED; pause expects RUNNING");
    client.act(Action::Resume, Some("environment-indexer")).await.unwrap();
    eventually("it continues", async || pipeline.progress().await.ticks_indexed > before.ticks_indexed).await;

    let refused = client.act(Action::Stop, Some("sauce")).await.unwrap_err().to_string();
    assert!(refused.starts_with("no service \"sauce\" in this process; it has query"), "{refused}");
    let resources = client.resources().await.unwrap();
    let files = resources.iter().find(|resource| resource.resource == "files").unwrap();
    assert!(files.health.counts.bytes_written > 0);
    assert!(files.bindings.iter().all(|binding| binding.state != UsageState::Failed), "{files:?}");
    // The source continues its run after a restart.
    let run = pipeline.progress().await.run_id;
    client.act(Action::Restart, Some("source")).await.unwrap();
    assert_eq!(state("source").await, ServiceState::Running);
    let stopped = client.act(Action::Stop, None).await.unwrap();
    assert!(stopped.iter().all(|status| status.state == ServiceState::Stopped), "{stopped:?}");
    assert_eq!(pipeline.progress().await.run_id, run);
    pipeline.stop().await.unwrap();
    place.remove(&[&run.unwrap()]).await;
}

#[tokio::test]
async fn run_continues_after_a_restart_of_everything() {
    let place = Place::sqlite();
    // Ten seconds, so that it is under way when it is stopped, also on a machine that stalls.
    let slow = ("ticks = 40", "ticks = 40\nticks_per_second = 4");
    let config = place.config(&[SMALL[0], SMALL[1], SMALL[2], slow]);
    let pipeline = Pipeline::from_config(config.clone()).start().await.unwrap();
    eventually("under way", async || pipeline.progress().await.ticks_published > 0).await;
    let first = pipeline.stop().await.unwrap().progress;
    let run = first.run_id;
    let pipeline = Pipeline::from_config(config.clone()).start().await.unwrap();
    until_finished(&pipeline).await;
    let progress = pipeline.progress().await;
    assert_eq!(progress.run_id, run, "the same run");
    assert_eq!((progress.run_ticks_published, progress.run_ticks_indexed), (40, Some(40)));
    // The source published until it was stopped, and each of these ticks counts once.
    assert_eq!(first.ticks_published + progress.ticks_published, 40, "{progress:?}");
    pipeline.stop().await.unwrap();
    let operator = Operator::open(config.clone()).await.unwrap();
    assert_eq!(operator.indexed_ticks(&run.clone().unwrap()).await.unwrap(), Some((0, 39)));
    assert_eq!(operator.runs().await.unwrap().len(), 1);
    operator.close().await.unwrap();
    // Once it has ended, the next start makes a new one.
    let pipeline = Pipeline::from_config(config).start().await.unwrap();
    eventually("a new run", async || pipeline.progress().await.run_id.is_some_and(|new| Some(new) != run))
        .await;
    pipeline.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_the_end_that_is_not_polled_holds_up_nothing() {
    let place = Place::sqlite();
    // The source ends while other services are being bound.
    let few = ("ticks = 40", "ticks = 3");
    let config = place.config(&[SMALL[0], SMALL[1], SMALL[2], few]);
    for _ in 0..8 {
        let pipeline = Pipeline::from_config(config.clone()).start().await.unwrap();
        let watched = async {
            let mut finished = std::pin::pin!(pipeline.finished());
            loop {
                tokio::select! {
                    ended = &mut finished => break ended,
                    () = tokio::time::sleep(Duration::from_millis(1)) => {}
                }
                // Meanwhile `finished` is not polled.
                pipeline.progress().await;
            }
        };
        tokio::time::timeout(DEADLINE, watched).await.expect("in time").unwrap();
        pipeline.stop().await.unwrap();
    }
}

#[tokio::test]
async fn sampled_ticks_are_what_is_counted() {
    let place = Place::sqlite();
    let every_third = ("seed = 7", "seed = 7, sampling_interval = 3");
    let config = place.config(&[SMALL[0], SMALL[1], SMALL[2], every_third]);
    let pipeline = Pipeline::from_config(config).start().await.unwrap();
    until_finished(&pipeline).await;
    let progress = pipeline.progress().await;
    assert_eq!((progress.ticks_total, progress.run_ticks_indexed), (Some(14), Some(14)));
    pipeline.stop().await.unwrap();
}

#[tokio::test]
async fn second_source_in_one_directory_is_refused() {
    let place = Place::sqlite();
    let endless = ("ticks = 40", "ticks_per_second = 100");
    let config = place.config(&[SMALL[0], SMALL[1], SMALL[2], endless]);
    let pipeline = Pipeline::from_config(config.clone()).start().await.unwrap();
    let refused = Pipeline::from_config(config.clone()).start().await.err().expect("refused");
    assert!(refused.to_string().contains("runs service source there; stop it first"), "{refused}");
    // Other services of the directory may run in processes of their own.
    let reader = config.clone().only(&["environment-indexer".into()]).unwrap();
    Pipeline::from_config(reader).start().await.unwrap().stop().await.unwrap();
    pipeline.stop().await.unwrap();
    Pipeline::from_config(config).start().await.unwrap().stop().await.unwrap();
}

/// The messages that the queue of a run still has.
async fn left_in_queue(place: &Place, run_id: &str) -> usize {
    let options = OpenOptions::default().namespace(run_id).create(false).maintenance(false);
    let store = Headwater::open_with(&place.store, options).await.unwrap();
    let left = store.published("tick-queue").await.unwrap().len();
    store.close().await.unwrap();
    left
}

async fn done_ticks_are_removed_before_the_last_process_leaves(place: Place) {
    let pipeline = Pipeline::from_config(place.config(&SMALL)).start().await.unwrap();
    until_finished(&pipeline).await;
    let run_id = pipeline.progress().await.run_id.unwrap();
    pipeline.stop().await.unwrap();
    assert_eq!(left_in_queue(&place, &run_id).await, 0);
    place.remove(&[&run_id]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn space_of_done_ticks_is_given_back_to_the_disk() {
    let place = Place::sqlite();
    let large = (
        "ticks = 40\ntidepool = { dimensions = [20, 20]",
        "ticks = 60\ntidepool = { compression = { enabled = false }, dimensions = [400, 400]",
    );
    let config = place.config(&[SMALL[0], SMALL[1], SMALL[2], large]);
    let pipeline = Pipeline::from_config(config).start().await.unwrap();
    until_finished(&pipeline).await;
    let progress = pipeline.progress().await;
    let run_id = progress.run_id.unwrap();
    pipeline.stop().await.unwrap();
    let file = place.directory.path().join(format!("base.{run_id}.db"));
    let (size, ticks) = (std::fs::metadata(&file).unwrap().len(), progress.file_bytes);
    assert!(ticks > 6 << 20 && size < ticks / 4, "{size} bytes are left of {ticks}");
    // It is a store as before.
    let options = OpenOptions::default().namespace(&run_id).create(false);
    let store = Headwater::open_with(&place.store, options).await.unwrap();
    assert_eq!(store.doctor().await.unwrap(), []);
    assert!(!store.published("batch-topic").await.unwrap().is_empty());
    store.close().await.unwrap();
}

async fn claim_checks_are_swept_while_a_pipeline_runs(place: Place) {
    // Every tick is a file, and the run ends before they are old.
    let large = ("type = \"queue\"", "type = \"queue\"\nclaim_check_bytes = 1");
    let config = place.config(&[SMALL[0], SMALL[1], SMALL[2], large]);
    let pipeline = Pipeline::from_config(config.clone()).start().await.unwrap();
    until_finished(&pipeline).await;
    let run_id = pipeline.progress().await.run_id.unwrap();
    pipeline.stop().await.unwrap();
    let folder = place.directory.path().join("files").join(&run_id).join("claims");
    let files = || std::fs::read_dir(&folder).map_or(0, Iterator::count);
    assert!(files() >= 40, "{}", files());
    let old = std::time::SystemTime::now() - Duration::from_secs(2 * 3_600);
    for entry in std::fs::read_dir(&folder).unwrap().skip(1) {
        let file = std::fs::File::options().write(true).open(entry.unwrap().path()).unwrap();
        file.set_modified(old).unwrap();
    }
    // Another run, of which the next process sweeps the former one too.
    let pipeline = Pipeline::from_config(config).start().await.unwrap();
    eventually("files of done ticks are removed", async || files() == 1).await;
    let next = pipeline.runs().list().await.unwrap().into_iter().map(|run| run.run_id);
    let next: Vec<String> = next.filter(|id| *id != run_id).collect();
    pipeline.stop().await.unwrap();
    let runs: Vec<&str> = next.iter().chain([&run_id]).map(String::as_str).collect();
    place.remove(&runs).await;
}

#[tokio::test]
async fn taken_address_is_refused_before_anything_starts() {
    let place = Place::sqlite();
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    for (section, said) in [
        ("[control]\nlisten = \"127.0.0.1:0\"", "control API"),
        ("type = \"query\"\nlisten = \"127.0.0.1:0\"", "query API"),
    ] {
        let changed = section.replace("127.0.0.1:0", &address.to_string());
        let config = place.config(&[(section, &changed)]);
        let error = Pipeline::from_config(config).start().await.err().unwrap().to_string();
        assert!(error.contains(&format!("{said} cannot listen on {address}")), "{error}");
    }
    let none = place.config(&[]).only(&[]).unwrap();
    let error = Pipeline::from_config(none).start().await.err().unwrap().to_string();
    assert!(error.contains("no service is configured"), "{error}");
}

#[tokio::test]
async fn pages_of_other_origins_cannot_control() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let place = Place::sqlite();
    let config = place.config(&SMALL).only(&["query".into()]).unwrap();
    let pipeline = Pipeline::from_config(config).start().await.unwrap();
    let address = pipeline.control_address();
    let ask = async |request: String| {
        let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    };
    let rest = "connection: close\r\ncontent-length: 0\r\n\r\n";
    let simple = ask(format!("POST /services/stop HTTP/1.1\r\nhost: {address}\r\n{rest}")).await;
    assert!(simple.contains("415"), "{simple}");
    let rebound = ask(format!("GET /services HTTP/1.1\r\nhost: evil.example\r\n{rest}")).await;
    assert!(rebound.contains("403"), "{rebound}");
    let own = ask(format!("GET /services HTTP/1.1\r\nhost: localhost:1\r\n{rest}")).await;
    assert!(own.contains("200"), "{own}");
    let page = pipeline.query_address().expect("the query API runs");
    assert!(tokio::net::TcpStream::connect(page).await.is_ok());
    let ended =
        tokio::time::timeout(Duration::from_secs(10), pipeline.stop()).await.expect("in time").unwrap();
    assert_eq!(ended.services[0].state, ServiceState::Stopped);
}

#[tokio::test]
async fn indexer_of_the_program_is_named_in_the_configuration() {
    use headwater_pipeline::indexer::DummyIndexer;
    let place = Place::sqlite();
    let own = "type = \"indexer\"\nindexer = \"mine\"";
    let organisms = "type = \"organism-indexer\"";
    let config = place.config(&[
        SMALL[0],
        SMALL[1],
        SMALL[2],
        (organisms, own),
        ("index = \"db-org-write:index\"\n", ""),
    ]);
    let refused = Pipeline::from_config(config.clone()).start().await.err().unwrap().to_string();
    assert!(
        refused.starts_with("test.toml:") && refused.ends_with("no indexer \"mine\"; this program has none"),
        "{refused}"
    );
    let mine = std::sync::Arc::new(DummyIndexer::default());
    let pipeline = Pipeline::from_config(config).indexer("mine", mine.clone()).start().await.unwrap();
    until_finished(&pipeline).await;
    pipeline.stop().await.unwrap();
    assert_eq!(mine.ticks(), 40);
}
