//! One process of a check: consumers or a publisher, until it is asked to end.
//!
//! It prints `ready` once it has started. SIGTERM ends it by [`Running::shutdown`], and so does the end of its input: the
//! input also ends when the parent dies, so no process outlives its run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use headwater::store::BackfillPace;
use headwater::{Context, Handling, Headwater, Json, Messages, OpenOptions, Running};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::publish::{self, Pace};
use crate::beside::{self, BesideJob};
use crate::chaos::{ChaosJob, run_job};
use crate::machine::resident_bytes;
use crate::pipeline::{self, PipelineJob};
use crate::relay::{self, RelayJob};
use crate::soak::history::now_us;
use crate::soak::{MemberJob, run_member};

/// The environment variable with the store's URL: a URL may hold a password, and other users can see arguments.
pub(crate) const STORE_VARIABLE: &str = "HEADWATER_LAB_STORE";
/// The line a process prints once it has started.
pub(crate) const READY: &str = "ready";
/// How long handlers may take to finish when a process is asked to end.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// The window of the figures of a process whose memory is judged.
const HEALTH_WINDOW: Duration = Duration::from_secs(5);

/// Options of one process.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    #[arg(long, env = STORE_VARIABLE, hide_env_values = true)]
    store: String,
    /// The job, as JSON.
    #[arg(long)]
    job: String,
}

/// The job of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "snake_case")]
pub(crate) enum Job {
    /// Publishes at a pace and prints its progress.
    Publish(Pace),
    /// Serves this many groups on one topic with batch handlers that do nothing, and prints their progress each second.
    Groups { topic: String, groups: usize },
    /// Waits: this many groups on each of this many topics.
    Wait { topics: usize, groups: usize },
    /// Appends each message to a ledger, in the transaction that acks it.
    Ledger(LedgerJob),
    /// Runs the maintenance jobs repeatedly, at this interval.
    Maintenance { every_ms: u64 },
    /// Runs backfills until there is none left, at a pace: conservative, standard or aggressive.
    Backfill { pace: String },
    /// Prints the number of each message it handled.
    Numbered { topic: String, group: String },
    /// A consumer of the soak.
    Member(MemberJob),
    /// A job of a chaos check.
    Chaos(ChaosJob),
    /// A job of a check beside neighbours.
    Beside(BesideJob),
    /// A relay that is killed.
    Relay(RelayJob),
    /// An indexer or a service of a pipeline.
    Pipeline(PipelineJob),
    /// Prints when the handler of each message starts and ends.
    Record { topic: String, group: String, handlers: usize, handle_ms: u64 },
}

/// How a ledger is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LedgerJob {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) handlers: usize,
    pub(crate) batch: u32,
    pub(crate) handle_ms: u64,
    pub(crate) lease_ms: u64,
}

/// The progress of the groups of a process.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Messages handled by the group that is furthest behind.
    pub(crate) handled_least: u64,
    /// Messages read from the store, and handed to groups.
    pub(crate) read: u64,
    pub(crate) handed: u64,
    pub(crate) resident_bytes: u64,
}

/// What a run of a maintenance job did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Maintained {
    pub(crate) job: String,
    pub(crate) rows: u64,
    pub(crate) duration_us: u64,
    pub(crate) error: Option<String>,
}

/// Runs the job until it is done or the process is asked to end.
pub(crate) async fn run_child(args: ChildArgs) -> Result<()> {
    let job = match serde_json::from_str(&args.job)? {
        // It reads more from its input than the end.
        Job::Member(job) => return run_member(&args.store, job).await,
        // It opens namespaces of the store itself.
        Job::Pipeline(job) => return pipeline::run_job(&args.store, job, end_requested()?).await,
        job => job,
    };
    let mut end = end_requested()?;
    let mut options = OpenOptions::default().actor("the lab");
    if matches!(job, Job::Groups { .. }) {
        // A window grows until it is full. A short one is full when the warm-up ends and does not count as growth.
        options = options.health_window(HEALTH_WINDOW);
    }
    let headwater = Headwater::open_with(&args.store, options).await?;
    let running = match job {
        Job::Publish(pace) => {
            println!("{READY}");
            tokio::select! {
                published = publish::publish(&headwater, &pace) => published?,
                _ = end.wait_for(|end| *end) => {}
            }
            return Ok(headwater.close().await?);
        }
        Job::Groups { topic, groups } => {
            let (running, counts) = serve_groups(&headwater, &topic, groups).await?;
            println!("{READY}");
            report_progress(&running, &counts, &mut end).await?;
            running
        }
        Job::Maintenance { every_ms } => {
            println!("{READY}");
            tokio::select! {
                kept = keep_up(&headwater, Duration::from_millis(every_ms)) => kept?,
                _ = end.wait_for(|end| *end) => {}
            }
            return Ok(headwater.close().await?);
        }
        Job::Chaos(job) => {
            run_job(&headwater, job, end).await?;
            return Ok(headwater.close().await?);
        }
        Job::Beside(job) => {
            beside::run_job(&headwater, &args.store, job, end).await?;
            return Ok(headwater.close().await?);
        }
        Job::Relay(job) => {
            relay::run_job(&headwater, job, end).await?;
            return Ok(headwater.close().await?);
        }
        Job::Backfill { pace } => {
            println!("{READY}");
            backfill(&headwater, &pace).await?;
            return Ok(headwater.close().await?);
        }
        Job::Member(_) | Job::Pipeline(_) => unreachable!("it has run already"),
        Job::Wait { topics, groups } => wait(&headwater, topics, groups).await?,
        Job::Ledger(job) => vec![keep_ledger(&headwater, &job).await?],
        Job::Numbered { topic, group } => vec![number(&headwater, &topic, &group).await?],
        Job::Record { topic, group, handlers, handle_ms } => {
            vec![record(&headwater, &topic, &group, handlers, handle_ms).await?]
        }
    };
    println!("{READY}");
    end.wait_for(|end| *end).await?;
    for stopped in futures_util::future::join_all(running.into_iter().map(|one| one.shutdown(GRACE))).await {
        ensure!(stopped?.in_time, "a handler took longer than the grace time");
    }
    Ok(headwater.close().await?)
}

/// Becomes true on SIGTERM, and when the input ends.
fn end_requested() -> Result<watch::Receiver<bool>> {
    let (sender, receiver) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate())?;
    let by_signal = sender.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        let _ = by_signal.send(true);
    });
    // On a thread of its own: a blocked read must not keep the process from ending.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = sender.send(true);
    });
    Ok(receiver)
}

type Counts = Vec<Arc<AtomicU64>>;

async fn serve_groups(headwater: &Headwater, topic: &str, groups: usize) -> Result<(Vec<Running>, Counts)> {
    let counts: Counts = (0..groups).map(|_| Arc::default()).collect();
    let mut running = Vec::with_capacity(groups);
    for (number, count) in counts.iter().enumerate() {
        let count = Arc::clone(count);
        let handling = Handling::batch(move |messages: Messages, _| {
            count.fetch_add(messages.len() as u64, Ordering::Relaxed);
            async { Ok(()) }
        });
        let consumer = headwater.consumer(topic, &format!("group-{number}"));
        running.push(consumer.handling("only", handling).batch(500).run().await?);
    }
    Ok((running, counts))
}

/// Prints the progress of the groups each second, until the process is asked to end.
async fn report_progress(
    running: &[Running],
    counts: &[Arc<AtomicU64>],
    end: &mut watch::Receiver<bool>,
) -> Result<()> {
    let mut interval = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            _ = end.wait_for(|end| *end) => return Ok(()),
        }
        let handled_least =
            counts.iter().map(|count| count.load(Ordering::Relaxed)).min().unwrap_or_default();
        // All groups of a topic share one feed: any of them has its counts.
        let (read, handed) = running.first().map(Running::read_and_handed).unwrap_or_default();
        let progress = Progress { handled_least, read, handed, resident_bytes: resident_bytes()? };
        println!("{}", serde_json::to_string(&progress)?);
    }
}

/// Runs all jobs repeatedly; prints what each run did.
async fn keep_up(headwater: &Headwater, every: Duration) -> Result<()> {
    let maintenance = headwater.maintenance();
    let mut interval = tokio::time::interval(every);
    loop {
        interval.tick().await;
        for run in maintenance.run_once(&headwater::maintenance::Job::ALL).await? {
            let line = Maintained {
                job: run.job.as_str().into(),
                rows: run.rows,
                duration_us: u64::try_from(run.duration.as_micros()).unwrap_or(u64::MAX),
                error: run.error,
            };
            println!("{}", serde_json::to_string(&line)?);
        }
    }
}

/// Runs backfills until none is open. The backfill of a killed process is free only after its timeout.
async fn backfill(headwater: &Headwater, pace: &str) -> Result<()> {
    let pace = match pace {
        "conservative" => BackfillPace::Conservative,
        "aggressive" => BackfillPace::Aggressive,
        _ => BackfillPace::Standard,
    };
    let maintenance = headwater.maintenance().backfill_pace(pace);
    while headwater.store().backfills().await?.iter().any(|backfill| backfill.state.is_open()) {
        let runs = maintenance.run_once(&[headwater::maintenance::Job::Backfill]).await?;
        ensure!(runs.iter().all(|run| run.error.is_none()), "the backfill failed: {runs:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn wait(headwater: &Headwater, topics: usize, groups: usize) -> Result<Vec<Running>> {
    let mut running = Vec::with_capacity(topics * groups);
    for topic in 0..topics {
        let topic = format!("wait-{topic}");
        headwater.topic(&topic).pub_sub().create().await?;
        for group in 0..groups {
            let handling = Handling::batch(|_: Messages, _| async { Ok(()) });
            let consumer = headwater.consumer(&topic, &format!("group-{group}"));
            running.push(consumer.handling("only", handling).run().await?);
        }
    }
    Ok(running)
}

async fn keep_ledger(headwater: &Headwater, job: &LedgerJob) -> Result<Running> {
    let pause = Duration::from_millis(job.handle_ms);
    let handling = if headwater.store().engine() == "sqlite" {
        Handling::in_sqlite(move |connection, Json(n): Json<i64>, context: &Context| {
            connection.execute(crate::runtime::once::INSERT_SQLITE, [n, i64::from(context.attempt())])?;
            // After the write, so that a kill finds it written and not committed.
            std::thread::sleep(pause);
            Ok(())
        })
    } else {
        Handling::in_postgres(move |transaction, Json(n): Json<i64>, context: Context| async move {
            transaction
                .execute(crate::runtime::once::INSERT_POSTGRES, &[&n, &i64::from(context.attempt())])
                .await?;
            tokio::time::sleep(pause).await;
            Ok(())
        })
    };
    let consumer = headwater.consumer(&job.topic, &job.group).handling("ledger", handling);
    let consumer = consumer.batch(job.batch).concurrency(job.handlers);
    Ok(consumer.lease(Duration::from_millis(job.lease_ms)).run().await?)
}

async fn record(
    headwater: &Headwater,
    topic: &str,
    group: &str,
    handlers: usize,
    handle_ms: u64,
) -> Result<Running> {
    let handling = Handling::one(move |Json(n): Json<u64>, _| async move {
        // A line is written whole, and what is in the pipe outlives the process.
        println!("+ {n} {}", now_us());
        tokio::time::sleep(Duration::from_millis(handle_ms)).await;
        println!("- {n} {}", now_us());
        Ok(())
    });
    Ok(headwater.consumer(topic, group).handling("recorder", handling).concurrency(handlers).run().await?)
}

async fn number(headwater: &Headwater, topic: &str, group: &str) -> Result<Running> {
    let handling = Handling::one(move |payload: bytes::Bytes, _| async move {
        let (n, _) = publish::parse(&payload).map_err(|error| error.to_string())?;
        println!("{n}");
        Ok(())
    });
    Ok(headwater.consumer(topic, group).handling("teller", handling).concurrency(4).run().await?)
}
