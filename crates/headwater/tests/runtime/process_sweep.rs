//! A program with a manager and a worker is killed in front of each of its writes, one after another: whatever was written, the
//! process ends, each effect is there once, and what is undone is undone in reverse.
#![cfg(target_os = "linux")]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use headwater::process::{ProcessStatus, ProcessType};
use headwater::testing::ManualClock;
use headwater::{Clock, Headwater, OpenOptions};
use tokio::process::Command;

use crate::each::{DEADLINE, Place, on_each};
use crate::process_scene::{Scene, legal, step};

on_each!(
    killed_at_every_write_of_a_process_that_succeeds,
    killed_at_every_write_of_a_process_that_is_undone,
    killed_at_every_write_of_a_process_whose_commands_are_late,
    killed_at_every_write_of_processes_that_move_together,
);

const URL: &str = "HEADWATER_SWEEP_URL";
const TABLE: &str = "HEADWATER_SWEEP_TABLE";
const NOW: &str = "HEADWATER_SWEEP_NOW";
const KEY: &str = "HEADWATER_SWEEP_KEY";
const DATA: &str = "HEADWATER_SWEEP_DATA";
/// Every so many writes one is chosen: 1 for all of them.
const STRIDE: &str = "HEADWATER_SWEEP_STRIDE";
const STRIDE_OF_TESTS: u32 = 23;
/// Longer than leases are, and shorter than a command may take.
const LEASES_END: Duration = Duration::from_secs(10 * 60);
const TIMEOUT: Duration = Duration::from_secs(24 * 3_600);

fn order() -> ProcessType {
    ProcessType::new("order")
        .step(step("reserve").timeout(TIMEOUT).compensation("undo reserve"))
        .step(step("charge").timeout(TIMEOUT).compensation("undo charge"))
        .step(step("ship").timeout(TIMEOUT))
}

/// The business keys of the processes that a program starts: one, or several whose messages are then handled together.
fn keys(key: &str, data: &str) -> Vec<String> {
    let count = if data.contains("together") { 3 } else { 1 };
    (0..count).map(|n| if n == 0 { key.to_owned() } else { format!("{key}-{n}") }).collect()
}

/// The program that is killed: starts a process, or several, and moves them to their ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "the sweep starts it in separate processes"]
async fn program() {
    let variable = |name: &str| std::env::var(name);
    let Ok(url) = variable(URL) else { return };
    let clock = ManualClock::at(variable(NOW).unwrap().parse().unwrap());
    let options = OpenOptions::default().clock(Clock::Manual(clock.clone()));
    let headwater = Headwater::open_with(&url, options).await.unwrap();
    let data: serde_json::Value = serde_json::from_str(&variable(DATA).unwrap()).unwrap();
    let mut scene = Scene::on(headwater, clock, &order(), variable(TABLE).unwrap(), Default::default()).await;
    println!("the sweep begins");
    let mut ids = Vec::new();
    for key in keys(&variable(KEY).unwrap(), &variable(DATA).unwrap()) {
        let start = scene.processes.start("order").business_key(&key).data(&data).once();
        ids.push(start.await.unwrap().process.id());
    }
    if data["late"] == true {
        scene.manage().await;
        scene.clock.advance(TIMEOUT);
    }
    // The server may still be ending a transaction of a program killed before, which holds back what was published after it.
    let until = tokio::time::Instant::now() + DEADLINE;
    for id in ids {
        scene.drain().await;
        while !scene.status(id).await.is_end() {
            assert!(tokio::time::Instant::now() < until, "{:?}", scene.process(id).await);
            scene.drain().await;
        }
    }
}

/// Runs the program up to a write; whether it was killed there. It ends well if it does fewer.
async fn run_until(write: u32, place: &Place, scene: &Scene, shim: &Path, data: &str) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["process_sweep::program", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("LD_PRELOAD", shim).env("KILL_AT", write.to_string());
    command.env(URL, place.url()).env(TABLE, &scene.table).env(KEY, write.to_string()).env(DATA, data);
    command.env(NOW, scene.clock.now().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = tokio::time::timeout(DEADLINE, command.output()).await.expect("it ends").unwrap();
    if output.status.signal() == Some(9) {
        return true;
    }
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "write {write}: {}", String::from_utf8_lossy(&said));
    false
}

fn compiled(directory: &Path) -> PathBuf {
    let shim = directory.join("writes.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runtime/kill/writes.c");
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).args([&shim, &source]).arg("-ldl");
    assert!(compiler.status().expect("the compiler that built SQLite exists").success());
    shim
}

/// Kills the program at one write after another, until it does no more of them. What it left is completed here each time.
async fn sweep(place: Place, data: &str, expected: ProcessStatus) {
    let directory = tempfile::tempdir().unwrap();
    let shim = compiled(directory.path());
    let mut scene = Scene::new(&place, &order()).await;
    let stride = std::env::var(STRIDE).ok().and_then(|stride| stride.parse().ok()).unwrap_or(STRIDE_OF_TESTS);
    // Other runs of this test take other writes.
    let mut write = 1 + std::process::id() % stride;
    let mut ended = 0;
    while run_until(write, &place, &scene, &shim, data).await {
        scene.clock.advance(LEASES_END);
        for key in keys(&write.to_string(), data) {
            let found = scene.processes.find_by_business_key("order", &key).await.unwrap();
            let Some(process) = found else { continue };
            // What the dead program had sent may still be carried out by the server: then there is more to do.
            let until = tokio::time::Instant::now() + DEADLINE;
            while !scene.status(process.id()).await.is_end() {
                assert!(
                    tokio::time::Instant::now() < until,
                    "write {write}: {:?}",
                    scene.process(process.id()).await
                );
                scene.pass(Duration::from_secs(60)).await;
            }
            let effects = scene.effects(process.id()).await;
            let stored = scene.process(process.id()).await;
            legal(stored.status(), &effects);
            assert_eq!(stored.status(), expected, "write {write}: {effects:?}");
            ended += 1;
        }
        write += stride;
    }
    println!("{} writes, one in {stride} chosen; {ended} processes were interrupted", write - 1);
    assert!(ended >= 5, "the sweep met the process {ended} times in {write} writes");
    scene.drain().await;
    scene.leave(place).await;
}

async fn killed_at_every_write_of_a_process_that_succeeds(place: Place) {
    sweep(place, "{}", ProcessStatus::Succeeded).await;
}

async fn killed_at_every_write_of_processes_that_move_together(place: Place) {
    sweep(place, r#"{"together":true}"#, ProcessStatus::Succeeded).await;
}

async fn killed_at_every_write_of_a_process_that_is_undone(place: Place) {
    sweep(place, r#"{"fails":"ship"}"#, ProcessStatus::Compensated).await;
}

async fn killed_at_every_write_of_a_process_whose_commands_are_late(place: Place) {
    sweep(place, r#"{"late":true}"#, ProcessStatus::Succeeded).await;
}
