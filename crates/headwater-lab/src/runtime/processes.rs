//! Processes: how many steps a second a manager and the handlers of its commands move, all of them in this program and in
//! transactions of the store; and how many DBOS, a library of durable workflows, records in the same run.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use headwater::Headwater;
use headwater::process::{Command, Commands, ProcessStatus, ProcessType, Processes, Step};
use headwater::transaction::Transaction;

use super::Setting;
use crate::bench::peers;
use crate::bench::peers::python::{DBOS, PythonPeer};
use crate::check::{Floor, GRACE, Judged, Place, Unit, progress};

const STEPS: usize = 3;
const PEER_DATABASE: &str = "headwater_lab_dbos";
/// How long the peer runs, before and after.
const PEER_RUNS: Duration = Duration::from_secs(5);
/// As docs/processes.md recommends on SQLite; on PostgreSQL the default.
const WORKER_BATCH: u32 = 300;
/// Processes that one transaction starts.
const STARTED_TOGETHER: usize = 500;

fn chain() -> ProcessType {
    (0..STEPS).fold(ProcessType::new("chain"), |chain, n| {
        let step = Step::new(&format!("step {n}"), "work", "Do").compensation("Undo");
        chain.step(step.timeout(Duration::from_secs(3_600)))
    })
}

/// At least 2,000 steps a second on PostgreSQL and 5,000 on SQLite: each is a command, its handler, a reply and a timer.
pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let count = match (setting.quick, place.is_postgres()) {
        (true, true) => 2_000,
        (true, false) => 4_000,
        (false, true) => 8_000,
        (false, false) => 20_000,
    };
    let mut dbos = peers::or_reason(DBOS.name, peer(place, setting).await);
    let mut peer_rate = dbos.as_mut().map_or(Ok(0.0), peer_runs)?;
    let rate = measure(place, count).await?;
    if let Ok(dbos) = &mut dbos {
        peer_rate = peer_rate.max(peer_runs(dbos)?);
    }
    let floor = if place.is_postgres() { 2_000.0 } else { 5_000.0 };
    let note = format!("{count} processes of {STEPS} steps at once");
    let steps = Judged::new("steps of processes", rate, Unit::PerSecond, Floor::AtLeast(floor));
    let steps = match &dbos {
        Ok(_) => steps.note(note),
        Err(why) => return Ok(vec![steps.note(format!("{note}; DBOS is missing: {why}"))]),
    };
    let note = format!(
        "{peer_rate:.0} steps/s of DBOS {}",
        dbos.map(|dbos| dbos.version.clone()).unwrap_or_default()
    );
    if let Some(server) = place.server() {
        server.drop_database(PEER_DATABASE).await?;
    }
    let times = Judged::new("steps, times those of DBOS", rate / peer_rate, Unit::Times, Floor::AtLeast(1.0));
    Ok(vec![steps, times.note(note)])
}

/// DBOS on a database or a file of its own.
async fn peer(place: &Place<'_>, setting: &Setting) -> Result<PythonPeer> {
    match place.server() {
        Some(server) => {
            let url = server.create_database(PEER_DATABASE).await?;
            PythonPeer::start_on(DBOS, &setting.work, url.as_ref())
        }
        None => {
            let directory = setting.work.join("dbos");
            let _ = std::fs::remove_dir_all(&directory);
            PythonPeer::start(DBOS, &setting.work, &directory)
        }
    }
}

fn peer_runs(dbos: &mut PythonPeer) -> Result<f64> {
    progress("running DBOS");
    let rate = dbos.run("steps", PEER_RUNS)?;
    Ok(rate.messages as f64 / rate.elapsed.as_secs_f64())
}

/// Starts processes, and then moves them all to their ends: steps a second.
async fn measure(place: &Place<'_>, count: usize) -> Result<f64> {
    let headwater = place.open().await?;
    let processes = headwater.processes();
    let manager = processes.manager(&chain()).await?;
    progress("starting processes");
    start(&headwater, &processes, count).await?;
    progress("moving them");
    let began = Instant::now();
    let manager = manager.run().await?;
    let commands = Commands::new()
        .on("Do", |_: Transaction, _: Command| async { Ok(()) })
        .on("Undo", |_: Transaction, _: Command| async { Ok(()) });
    let worker = headwater.consumer("work", "worker").handling("one", commands.handling());
    let worker = if place.is_postgres() { worker } else { worker.batch(WORKER_BATCH) };
    let worker = worker.run().await?;
    while !is_done(&processes).await? {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = began.elapsed();
    worker.shutdown(GRACE).await?;
    manager.shutdown(GRACE).await?;
    let failed = processes.find_by_status(ProcessStatus::Failed, 1).await?;
    let undone = processes.find_by_status(ProcessStatus::Compensated, 1).await?;
    ensure!(failed.is_empty() && undone.is_empty(), "every process succeeds");
    headwater.close().await?;
    Ok((count * STEPS) as f64 / took.as_secs_f64())
}

async fn start(headwater: &Headwater, processes: &Processes, count: usize) -> Result<()> {
    for _ in 0..count / STARTED_TOGETHER {
        let processes = processes.clone();
        let started: headwater::Result<()> = headwater
            .transaction(move |tx: Transaction| async move {
                let inside = processes.within(&tx);
                for _ in 0..STARTED_TOGETHER {
                    inside.start("chain").await?;
                }
                Ok(())
            })
            .await;
        started?;
    }
    Ok(())
}

async fn is_done(processes: &Processes) -> Result<bool> {
    for status in [ProcessStatus::New, ProcessStatus::Running, ProcessStatus::Compensating] {
        if !processes.find_by_status(status, 1).await?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}
