//! A program with a manager and workers is killed again and again: every process ends, and no command has its effect twice.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use headwater::process::ProcessStatus;
use headwater::transaction::{Row, Transaction};
use headwater::{Headwater, OpenOptions};
use serde_json::json;
use uuid::Uuid;

use crate::each::{DEADLINE, Place, eventually, on_each};
use crate::process_sagas::all_ended;
use crate::process_scene::{Reaction, Script, commands};

on_each!(killed_anywhere_every_process_ends_and_no_effect_is_doubled);

const URL: &str = "HEADWATER_PROCESS_KILL_URL";
const TABLE: &str = "HEADWATER_PROCESS_KILL_TABLE";
const PROCESSES: usize = 60;
const KILLS: u32 = 12;

fn order() -> headwater::process::ProcessType {
    let (short, long) = (Duration::from_millis(20), Duration::from_millis(100));
    let step =
        |name: &str| headwater::process::Step::new(name, "work", name).attempts(4).backoff(short, long);
    headwater::process::ProcessType::new("order")
        .step(step("reserve").compensation("undo reserve"))
        .parallel("prepare", [step("pack").compensation("undo pack"), step("label")])
        .step(step("charge").compensation("undo charge"))
        .step(step("ship"))
}

const NAMES: [&str; 8] =
    ["reserve", "pack", "label", "charge", "ship", "undo reserve", "undo pack", "undo charge"];

/// The program that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the test starts it in separate processes"]
async fn program() {
    let (Ok(url), Ok(table)) = (std::env::var(URL), std::env::var(TABLE)) else { return };
    let headwater = Headwater::open_with(&url, OpenOptions::default()).await.unwrap();
    let manager = headwater.processes().manager(&order()).await.unwrap().batch(5).run().await.unwrap();
    // Some commands fail, so that there is a way back.
    let script = Script::default();
    let fails =
        [("charge", vec![Reaction::Retry, Reaction::Fail]), ("ship", vec![Reaction::Fail, Reaction::Break])];
    script.lock().unwrap().extend(fails.map(|(name, reactions)| (name.to_owned(), reactions)));
    let worker = headwater
        .consumer("work", "worker")
        .batch(5)
        .backoff(Duration::from_millis(20), Duration::from_millis(50));
    let worker = worker.handling("one", commands(&NAMES, &table, &script).handling()).run().await.unwrap();
    std::future::pending::<()>().await;
    drop((manager, worker));
}

/// Killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(place: &Place, table: &str) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["process_kill::program", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(URL, place.url()).env(TABLE, table).stdout(Stdio::null()).stderr(Stdio::null());
    Running(command.spawn().unwrap())
}

async fn rows(headwater: &Headwater, sql: String) -> Vec<Row> {
    let rows: headwater::Result<Vec<Row>> =
        headwater.transaction(move |tx: Transaction| async move { tx.query(&sql, ()).await }).await;
    rows.unwrap()
}

async fn killed_anywhere_every_process_ends_and_no_effect_is_doubled(place: Place) {
    let headwater = place.open().await;
    let table = format!("effect_{}", Uuid::now_v7().simple());
    rows(&headwater, format!("CREATE TABLE {table} (name text, command_id text, process_id text)")).await;
    let processes = headwater.processes();
    let (mut ids, mut amid_work) = (Vec::new(), 0);
    for kill in 0..KILLS {
        // At first, and where a slow machine comes too late to kill: a kill of a program that has nothing to do proves nothing.
        if all_ended(&processes).await {
            for n in 0..PROCESSES {
                ids.push(processes.start("order").data(&json!({ "n": n })).await.unwrap().process.id());
            }
        }
        let running = run(&place, &table);
        let before = rows(&headwater, format!("SELECT CAST(count(*) AS bigint) AS n FROM {table}")).await;
        let before: i64 = before[0].get("n").unwrap();
        // Killed at some moment after it has done something.
        let until = tokio::time::Instant::now() + DEADLINE;
        let wanted = before + i64::from(kill % 4) * 7 + 1;
        loop {
            let now = rows(&headwater, format!("SELECT CAST(count(*) AS bigint) AS n FROM {table}")).await;
            if now[0].get::<i64>("n").unwrap() >= wanted || all_ended(&processes).await {
                break;
            }
            assert!(tokio::time::Instant::now() < until, "nothing moves after kill {kill}");
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        drop(running);
        amid_work += u32::from(!all_ended(&processes).await);
    }
    assert!(amid_work > 0, "every one of {KILLS} kills came after the last process had ended");
    let _running = run(&place, &table);
    for id in &ids {
        eventually("every process ends", async || {
            processes.find_by_id(*id).await.unwrap().unwrap().status().is_end()
        })
        .await;
    }
    check(&headwater, &table, &ids).await;
    drop(_running);
    rows(&headwater, format!("DROP TABLE {table}")).await;
    place.leave(&headwater).await;
}

async fn check(headwater: &Headwater, table: &str, ids: &[Uuid]) {
    let doubled = format!("SELECT command_id FROM {table} GROUP BY command_id HAVING count(*) > 1");
    assert_eq!(rows(headwater, doubled).await, [], "a command has its effect once");
    for id in ids {
        let process = headwater.processes().find_by_id(*id).await.unwrap().unwrap();
        assert_eq!(headwater.processes().replay(*id).await.unwrap().as_ref(), Some(&process));
        let names = format!("SELECT name FROM {table} WHERE process_id = '{id}'");
        let names: Vec<String> =
            rows(headwater, names).await.iter().map(|row| row.get("name").unwrap()).collect();
        let count = |name: &str| names.iter().filter(|other| *other == name).count();
        match process.status() {
            ProcessStatus::Succeeded => {
                for step in ["reserve", "pack", "label", "charge", "ship"] {
                    assert_eq!(count(step), 1, "{step} of {id}: {names:?}");
                }
                assert_eq!(names.len(), 5, "nothing is undone: {names:?}");
            }
            _ => {
                for step in ["reserve", "pack", "charge"] {
                    assert_eq!(count(step), count(&format!("undo {step}")), "{step} of {id}: {names:?}");
                }
            }
        }
    }
}
