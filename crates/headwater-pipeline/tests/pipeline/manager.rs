//! Whole pipelines: from configuration to index, controlled over HTTP.

use std::time::Duration;

use headwater_pipeline::bindings::UsageState;
use headwater_pipeline::control::Client;
use headwater_pipeline::index::select::Selection;
use headwater_pipeline::manager::{Action, ServiceState};
use headwater_pipeline::pipeline::Operator;
use headwater_pipeline::{Pipeline, RunningPipeline};

use crate::scene::{DEADLINE, Place, eventually, on_both};

on_both! {
    all_ticks_are_indexed
    services_are_controlled_over_http
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
    let ended = pipeline.stop().await.unwrap();
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
    let slow = ("ticks = 40", "ticks = 40\nticks_per_second = 100");
    let config = place.config(&[SMALL[0], SMALL[1], SMALL[2], slow]);
    let pipeline = Pipeline::from_config(config.clone()).start().await.unwrap();
    eventually("under way", async || pipeline.progress().await.ticks_published > 0).await;
    let run = pipeline.progress().await.run_id;
    pipeline.stop().await.unwrap();
    let pipeline = Pipeline::from_config(config.clone()).start().await.unwrap();
    until_finished(&pipeline).await;
    assert_eq!(pipeline.progress().await.run_id, run, "the same run");
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
    assert_eq!(ended[0].state, ServiceState::Stopped);
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
