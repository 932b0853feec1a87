//! Jobs of the processes of a chaos check. Each prints what happened line by line, in the format of `check::judge`.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, Result};
use headwater::{Handling, Headwater, Json, Start};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::check::{GRACE, READY};
use crate::soak::history::now_us;

/// The job of a process of a chaos check.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "chaos", rename_all = "snake_case")]
pub(crate) enum ChaosJob {
    /// Publishes rising numbers one after the other. Prints `a n from to` for each that is acknowledged and `f n from to
    /// error` for each that is not, and continues with the next.
    Numbers { topic: String, first: u64, pause_ms: u64 },
    /// Handles numbers: prints `+ n us` and `- n us`, and its health each half second: `h state
    /// when why`, with its last error.
    Handle { topic: String, group: String, handlers: usize, handle_ms: u64 },
    /// Blocks the thread of each handler for this long.
    Block { topic: String, group: String, handlers: usize, block_ms: u64 },
    /// Pulls batches, and works slowly on each message.
    Pull { topic: String, group: String, work_ms: u64, lease_ms: u64 },
    /// Publishes, claims and acks this many numbers, appends each acknowledged one to a file, and ends without closing.
    Steps { topic: String, messages: u64, acknowledged: String },
}

/// Runs the job until the process is asked to end.
pub(crate) async fn run_job(
    headwater: &Headwater,
    job: ChaosJob,
    mut ending: watch::Receiver<bool>,
) -> Result<()> {
    match job {
        ChaosJob::Numbers { topic, first, pause_ms } => {
            println!("{READY}");
            tokio::select! {
                () = numbers(headwater, &topic, first, Duration::from_millis(pause_ms)) => {}
                _ = ending.wait_for(|ending| *ending) => {}
            }
        }
        ChaosJob::Handle { topic, group, handlers, handle_ms } => {
            let pause = Duration::from_millis(handle_ms);
            let handling = Handling::one(move |Json(n): Json<u64>, _| async move {
                println!("+ {n} {}", now_us());
                tokio::time::sleep(pause).await;
                println!("- {n} {}", now_us());
                Ok(())
            });
            handle(headwater, &topic, &group, handlers, handling, ending).await?;
        }
        ChaosJob::Block { topic, group, handlers, block_ms } => {
            let handling = Handling::one(move |Json(n): Json<u64>, _| async move {
                println!("+ {n} {}", now_us());
                // On purpose: programs do this.
                std::thread::sleep(Duration::from_millis(block_ms));
                println!("- {n} {}", now_us());
                Ok(())
            });
            handle(headwater, &topic, &group, handlers, handling, ending).await?;
        }
        ChaosJob::Pull { topic, group, work_ms, lease_ms } => {
            let consumer = headwater.consumer(&topic, &group).batch(100);
            let mut consumer = consumer.lease(Duration::from_millis(lease_ms)).open().await?;
            println!("{READY}");
            while !*ending.borrow() {
                let Some(batch) = consumer.next(Duration::from_millis(200)).await? else { continue };
                for message in batch.messages() {
                    let n: u64 = serde_json::from_slice(&message.payload)?;
                    println!("+ {n} {}", now_us());
                    tokio::time::sleep(Duration::from_millis(work_ms)).await;
                    println!("- {n} {}", now_us());
                }
                if let Err(error) = batch.ack().await {
                    println!("x {error}");
                }
            }
            consumer.close().await?;
        }
        ChaosJob::Steps { topic, messages, acknowledged } => {
            steps(headwater, &topic, messages, &acknowledged).await?;
        }
    }
    Ok(())
}

async fn numbers(headwater: &Headwater, topic: &str, first: u64, pause: Duration) {
    let producer = headwater.producer(topic);
    for n in first.. {
        let from = now_us();
        match producer.send(&n).await {
            Ok(_) => println!("a {n} {from} {}", now_us()),
            Err(error) => println!("f {n} {from} {} {error}", now_us()),
        }
        tokio::time::sleep(pause).await;
    }
}

async fn handle(
    headwater: &Headwater,
    topic: &str,
    group: &str,
    handlers: usize,
    handling: Handling,
    mut ending: watch::Receiver<bool>,
) -> Result<()> {
    let consumer = headwater.consumer(topic, group).start_from(Start::Beginning);
    let running = consumer.handling("only", handling).concurrency(handlers).run().await?;
    println!("{READY}");
    let mut every = tokio::time::interval(Duration::from_millis(500));
    loop {
        tokio::select! {
            _ = ending.wait_for(|ending| *ending) => break,
            reason = running.until_ended() => {
                println!("h Ended 0 {reason}");
                break;
            }
            _ = every.tick() => {
                let health = running.health();
                let last = health.last_errors.first();
                let at_ms = last.map_or(0, |error| error.at.as_millisecond());
                let why = health.reason.or(last.map(|error| error.message.clone())).unwrap_or_default();
                println!("h {:?} {at_ms} {why}", health.state);
            }
        }
    }
    running.shutdown(GRACE).await?;
    Ok(())
}

/// Publishes, claims and acks in turn: commits that wait for the disk, and commits that do not.
async fn steps(headwater: &Headwater, topic: &str, messages: u64, acknowledged: &str) -> Result<()> {
    let mut acknowledged = std::fs::OpenOptions::new().append(true).create(true).open(acknowledged)?;
    headwater.topic(topic).create().await?;
    let producer = headwater.producer(topic);
    let mut consumer = headwater.consumer(topic, "workers").batch(3).open().await?;
    let mut last = String::new();
    for n in 0..messages {
        match producer.send(&n).await {
            // One write call: it is recorded in order between those of the store.
            Ok(_) => acknowledged.write_all(format!("{n}\n").as_bytes())?,
            Err(error) => last = format!("{n}: {error}"),
        }
        // Refusals of the store are not judged here.
        if n % 2 == 0
            && let Ok(Some(batch)) = consumer.next(Duration::from_millis(5)).await
        {
            let _ = batch.ack().await;
        }
    }
    println!("last error: {last}");
    std::io::stdout().flush().context("printing the last error")?;
    // Without closing: that would clean up.
    std::process::exit(0);
}
