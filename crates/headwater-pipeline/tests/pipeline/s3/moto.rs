//! A whole pipeline whose files are in a server that speaks the protocol of S3, and that is away for a while in the middle of a run.
//!
//! The server is moto, which `cargo xtask test` installs. It keeps objects in memory, so it is not killed: it is stopped by a signal, so that
//! requests hang, or cut off by a proxy whose port is closed, so that connections are refused. `HEADWATER_S3_OUTAGE_S` is how long (2).

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::pipeline::{Operator, Progress};
use headwater_pipeline::{Config, Pipeline, RunningPipeline};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::scene::{Place, eventually, on_both};

on_both! {
    nothing_is_lost_while_requests_hang
    nothing_is_lost_while_connections_are_refused
}

const TICKS: i64 = 400;
/// With an outage. The run lasts for ten seconds: it ends before the outage begins only if the machine stalls for most of them.
const TICKS_PER_SECOND: i64 = 40;
/// The outage begins with so many ticks indexed: files are written and read by then.
const BEFORE: u64 = 60;
const FINISHED_WITHIN: Duration = Duration::from_secs(120);

fn outage() -> Duration {
    let seconds = std::env::var("HEADWATER_S3_OUTAGE_S").map(|text| text.parse().expect("seconds"));
    Duration::from_secs(seconds.unwrap_or(2))
}

/// The program; `None`, with a printed notice, where it is not installed, and a failure where nothing may be skipped.
fn program() -> Option<PathBuf> {
    let folder = std::env::var_os("HEADWATER_TEST_LANGUAGES");
    let program = folder.map(|folder| PathBuf::from(folder).join("moto/bin/moto_server"));
    if let Some(program) = program.filter(|program| program.exists()) {
        return Some(program);
    }
    let required = ["HEADWATER_TEST_REQUIRE_ALL", "CI"].iter().any(|name| std::env::var_os(name).is_some());
    assert!(!required, "HEADWATER_TEST_LANGUAGES has no moto, and nothing may be skipped");
    println!("skipped: HEADWATER_TEST_LANGUAGES has no moto");
    None
}

/// The server. Killed with its value.
struct Moto {
    process: Child,
    address: SocketAddr,
}

impl Moto {
    fn start() -> Option<Self> {
        let mut process = Command::new(program()?)
            .args(["-H", "127.0.0.1", "-p", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("moto");
        let mut lines = BufReader::new(process.stderr.take().expect("piped")).lines();
        let said = lines.find_map(|line| {
            line.expect("text").split_once("Running on http://").map(|(_, address)| address.trim().to_owned())
        });
        // Further lines are read, so that it never waits for this test.
        std::thread::spawn(move || lines.for_each(drop));
        let address = said.expect("an address").parse().expect("an address");
        Some(Moto { process, address })
    }

    async fn create_bucket(&self) {
        let mut connection = TcpStream::connect(self.address).await.expect("a connection");
        let request = "PUT /bucket HTTP/1.1\r\nhost: s3.amazonaws.com\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        connection.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.process.id().to_string()]).status();
        assert!(sent.expect("kill").success());
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Passes connections on, until it is closed: then its port refuses new ones, and those that are open end.
struct Proxy {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    async fn open(to: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        Proxy::listen(listener, to)
    }

    /// Opens the port that another proxy had.
    fn open_again(held: TcpSocket, to: SocketAddr) -> Self {
        Proxy::listen(held.listen(1_024).expect("the port"), to)
    }

    fn listen(listener: TcpListener, to: SocketAddr) -> Self {
        let address = listener.local_addr().expect("an address");
        let task = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((mut from, _)) = listener.accept().await {
                open.spawn(async move {
                    let mut to = TcpStream::connect(to).await?;
                    tokio::io::copy_bidirectional(&mut from, &mut to).await
                });
            }
        });
        Proxy { address, task }
    }

    /// The port is bound again, so that no other program gets it, and refuses connections, because nothing listens.
    async fn close(self) -> TcpSocket {
        self.task.abort();
        let _ = self.task.await;
        let held = TcpSocket::new_v4().expect("a socket");
        // Connections of the port are still being closed.
        held.set_reuseaddr(true).expect("set");
        held.bind(self.address).expect("the port");
        let refused = TcpStream::connect(self.address).await.expect_err("closed");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        held
    }
}

/// The pipeline of a place, with files in the bucket, or without an address in a directory.
fn config(place: &Place, address: Option<SocketAddr>) -> Config {
    let ticks_per_second = if address.is_some() { TICKS_PER_SECOND } else { 200 };
    let source = format!(
        "type = \"tidepool\"\nticks = {TICKS}\nticks_per_second = {ticks_per_second}\n\
         tidepool = {{ dimensions = [20, 20], organisms = 4, seed = 7 }}"
    );
    let files = address.map_or("url = \"${DIRECTORY}/files\"".to_owned(), |address| {
        format!(
            "url = \"s3://bucket/files\"\noptions = {{ endpoint = \"http://{address}\", allow_http = \"true\", \
             region = \"us-east-1\", access_key_id = \"id\", secret_access_key = \"secret\" }}"
        )
    });
    place.config(&[
        ("type = \"tidepool\"", &source),
        ("url = \"${DIRECTORY}/files\"", &files),
        (
            "[resources.tick-queue]\ntype = \"queue\"",
            "[resources.tick-queue]\ntype = \"queue\"\npending_max = 100",
        ),
        ("batch_timeout_ms = 1000", "batch_timeout_ms = 250\nbatch_size = 20"),
        ("flush_timeout_ms = 1000", "flush_timeout_ms = 50\ninsert_batch_size = 30"),
    ])
}

async fn under_way(pipeline: &RunningPipeline) {
    let indexed = |progress: &Progress| progress.ticks_indexed.min(progress.organism_ticks_indexed);
    eventually("the run is under way", async || indexed(&pipeline.progress().await) >= BEFORE).await;
}

/// Lets time pass in which no file can be written.
async fn away(pipeline: &RunningPipeline) {
    // What was on its way when the outage began is announced soon.
    let mut before = pipeline.progress().await;
    eventually("the last file is announced", async || {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let former = std::mem::replace(&mut before, pipeline.progress().await);
        former.files == before.files
    })
    .await;
    tokio::time::sleep(outage()).await;
    let after = pipeline.progress().await;
    assert_eq!(after.files, before.files, "the server is away");
    assert!(after.ticks_indexed < TICKS as u64, "the outage is in the middle of the run: {after:?}");
}

/// Waits for the end; the id of the run.
async fn finish(pipeline: RunningPipeline) -> String {
    tokio::time::timeout(FINISHED_WITHIN, pipeline.finished()).await.expect("in time").expect("finished");
    let progress = pipeline.progress().await;
    assert!(progress.lags.iter().all(|lag| lag.messages == 0), "{progress:?}");
    assert_eq!(progress.run_ticks_indexed, Some(TICKS as u64));
    let ended = pipeline.stop().await.expect("stopped");
    let buried: u64 = ended.services.iter().map(|status| status.health.counts.batches_buried).sum();
    assert_eq!(buried, 0, "an outage costs no attempt");
    progress.run_id.expect("a run")
}

/// Everything that an index has of each tick.
async fn contents(config: &Config, run_id: &str) -> Vec<(i64, Vec<bytes::Bytes>, String)> {
    let url = &config.index().expect("declared").url;
    let index = Index::open(url, run_id, &IndexOptions::default()).expect("an index");
    let mut contents = Vec::new();
    for tick in index.ticks(0..=i64::MAX, 10_000).await.expect("ticks") {
        let stored = index.stored(tick, None).await.expect("read").expect("indexed");
        let organisms = index.organisms(tick, None, 10_000).await.expect("read").expect("indexed");
        contents.push((tick, stored.blobs, format!("{organisms:?}")));
    }
    index.close().await;
    contents
}

/// Compares the index with one that was made from a directory, without an outage.
async fn same_as_undisturbed(place: Place, config: Config, run_id: String) {
    let operator = Operator::open(config.clone()).await.expect("opened");
    let findings = operator.check_storage(&run_id).await.expect("checked");
    let errors = findings.iter().filter(|finding| finding.problem.is_harmful()).count();
    assert_eq!(errors, 0, "{findings:?}");
    operator.close().await.expect("closed");
    let disturbed = contents(&config, &run_id).await;
    assert_eq!(disturbed.len() as i64, TICKS);
    assert_eq!(disturbed.last().expect("ticks").0, TICKS - 1);

    let other = Place::sqlite();
    let undisturbed = self::config(&other, None);
    let pipeline = Pipeline::from_config(undisturbed.clone()).start().await.expect("started");
    let other_run = finish(pipeline).await;
    let expected = contents(&undisturbed, &other_run).await;
    for (found, expected) in disturbed.iter().zip(&expected) {
        assert!(found == expected, "tick {} differs", expected.0);
    }
    assert_eq!(disturbed.len(), expected.len());
    place.remove(&[&run_id]).await;
}

async fn nothing_is_lost_while_requests_hang(place: Place) {
    let Some(moto) = Moto::start() else { return };
    moto.create_bucket().await;
    let config = config(&place, Some(moto.address));
    let pipeline = Pipeline::from_config(config.clone()).start().await.expect("started");
    under_way(&pipeline).await;
    moto.signal("-STOP");
    away(&pipeline).await;
    moto.signal("-CONT");
    let run_id = finish(pipeline).await;
    same_as_undisturbed(place, config, run_id).await;
}

async fn nothing_is_lost_while_connections_are_refused(place: Place) {
    let Some(moto) = Moto::start() else { return };
    moto.create_bucket().await;
    let proxy = Proxy::open(moto.address).await;
    let config = config(&place, Some(proxy.address));
    let pipeline = Pipeline::from_config(config.clone()).start().await.expect("started");
    under_way(&pipeline).await;
    let held = proxy.close().await;
    away(&pipeline).await;
    let errors: u64 = pipeline.manager().list().iter().map(|status| status.health.error_count).sum();
    assert!(errors > 0 || outage() < Duration::from_secs(10), "a long outage is recorded");
    let proxy = Proxy::open_again(held, moto.address);
    let run_id = finish(pipeline).await;
    same_as_undisturbed(place, config, run_id).await;
    proxy.close().await;
}
