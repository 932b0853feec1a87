//! Periodic messages: a cron expression in a time zone, published once per tick, whichever processes run.
//!
//! `cargo run -p headwater --example cron [postgres://…]`

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use headwater::cron::{CronJob, Missed};
use headwater::{Context, Headwater, Json};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

#[path = "support/place.rs"]
mod place;

const TICKS: usize = 3;

#[derive(Serialize, Deserialize)]
struct MakeReport {
    name: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    place::Place::embedded_by_default()?.visit(cron).await
}

async fn cron(url: &str) -> Result<()> {
    // Two handles, as two processes have them. Each starts the job; the store decides which one publishes a tick.
    let (here, there) = (Headwater::open(url).await?, Headwater::open(url).await?);
    here.topic("reports").create_if_missing().await?;
    let jobs = [start(&here).await?, start(&there).await?];

    // The consumer decides what a tick means; its message has retries, dead letters and all else a message has.
    let (made, mut reports) = mpsc::channel(16);
    let running = here
        .consumer("reports", "maker")
        .member("one", move |Json(report): Json<MakeReport>, context: Context| {
            let made = made.clone();
            async move {
                let tick = context.message().headers["headwater-cron-tick"].clone();
                println!("{} report of {tick}", report.name);
                made.send(tick).await?;
                Ok(())
            }
        })
        .run()
        .await?;

    let mut ticks = BTreeSet::new();
    for _ in 0..TICKS {
        let tick = reports.recv().await.context("the consumer stopped")?;
        ensure!(ticks.insert(tick.clone()), "tick {tick} was handled twice");
    }

    let published: u64 = jobs.iter().map(|job| job.health().totals.published).sum();
    for job in jobs {
        job.stop().await;
    }
    running.shutdown(Duration::from_secs(10)).await?;
    // One more tick may have fired during the shutdown; none fired twice.
    let messages = here.published("reports").await?;
    let distinct: BTreeSet<_> =
        messages.iter().map(|message| &message.headers["headwater-cron-tick"]).collect();
    ensure!(distinct.len() == messages.len(), "a tick was published twice");
    ensure!(published >= TICKS as u64, "{published} ticks were published");
    there.close().await?;
    here.close().await?;
    println!("two processes, every tick once");
    Ok(())
}

/// Every process that is to take part starts the job under the same name.
async fn start(headwater: &Headwater) -> Result<CronJob> {
    let job = headwater
        // Six fields begin with seconds: this is every second, so that the example ends soon. "0 7 * * 1-5" is at seven on
        // working days.
        .cron("report", "* * * * * *")
        .time_zone("Europe/Zurich")
        .topic("reports")
        .message(&MakeReport { name: "sales".to_owned() })
        // Of the ticks missed while no process ran, only the last is fired.
        .missed(Missed::FireOnce)
        .start()
        .await?;
    Ok(job)
}
