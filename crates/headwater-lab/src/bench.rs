//! `headwater-lab bench`: this engine on both databases beside peers and limits, in one run on one machine.

pub(crate) mod engine;
pub(crate) mod measure;
mod outbox;
pub(crate) mod peers;
mod postgres;
pub(crate) mod report;
mod sqlite;
mod svg;
mod waiting;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::check::report::write_json;
use crate::check::{Figure, Unit, progress};
use crate::machine::{Machine, busy_percent, fdatasync_idle_ms, fdatasync_per_second};
use crate::server::{self, Server};
use report::{Beside, Floor, Report, Row};

/// The payload of every message measured.
pub(crate) const PAYLOAD_BYTES: usize = 100;

/// The payload for peers that accept JSON text: with its quotes it is 100 bytes.
fn payload_text() -> String {
    "x".repeat(PAYLOAD_BYTES - 2)
}

/// Options of `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// About two minutes in all: shorter rounds, a smaller backlog.
    #[arg(long)]
    quick: bool,
    /// Writes everything as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the ratios.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Only these pieces of work.
    #[arg(long, value_enum, num_args = 1.., value_name = "NAME")]
    only: Vec<Work>,
    /// A server to use instead of one of the lab's own; databases named headwater_lab_* are created there and removed.
    #[arg(long, value_name = "URL")]
    store_postgres: Option<String>,
    /// How long to hold the load before dead tuples are counted, in seconds (default 600, with --quick 8).
    #[arg(long, value_name = "SECONDS")]
    load_seconds: Option<u64>,
    /// Directory for data, logs and installed peers.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/lab")]
    work: PathBuf,
}

/// What can be measured on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Work {
    Fdatasync,
    PgPublish,
    PgSend,
    PgConsume,
    PgSql,
    PgGroups,
    PgWal,
    PgLoad,
    PgLatency,
    PgIdle,
    PgOutbox,
    SqlitePublish,
    SqliteSend,
    SqliteConsume,
    SqliteLatency,
    SqliteIdle,
    SqliteOutbox,
}

impl Work {
    fn is_postgres(self) -> bool {
        use Work::{
            PgConsume, PgGroups, PgIdle, PgLatency, PgLoad, PgOutbox, PgPublish, PgSend, PgSql, PgWal,
        };
        matches!(
            self,
            PgPublish
                | PgSend
                | PgConsume
                | PgSql
                | PgGroups
                | PgWal
                | PgLoad
                | PgLatency
                | PgIdle
                | PgOutbox
        )
    }
}

/// How long and how often to measure.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// One round of one contender.
    round: Duration,
    /// How often contenders alternate.
    rounds: usize,
    /// The large backlog on SQLite.
    backlog_messages: usize,
    /// How many messages wait on PostgreSQL before consuming is measured.
    log_messages: usize,
    latency_samples: usize,
    idle: Duration,
    load: Duration,
}

impl Plan {
    fn new(args: &BenchArgs) -> Self {
        let load = |default| Duration::from_secs(args.load_seconds.unwrap_or(default));
        if args.quick {
            Plan {
                round: Duration::from_millis(1_000),
                rounds: 2,
                backlog_messages: 1_000_000,
                log_messages: 1_000_000,
                latency_samples: 200,
                idle: Duration::from_secs(4),
                load: load(8),
            }
        } else {
            Plan {
                round: Duration::from_secs(4),
                rounds: 4,
                backlog_messages: 10_000_000,
                log_messages: 4_000_000,
                latency_samples: 1_000,
                idle: Duration::from_secs(20),
                load: load(600),
            }
        }
    }
}

/// Runs the requested measurements; true if no floor was missed.
pub(crate) async fn run(args: BenchArgs) -> Result<bool> {
    let start = Instant::now();
    let plan = Plan::new(&args);
    std::fs::create_dir_all(&args.work)?;
    let wanted = |work: Work| args.only.is_empty() || args.only.contains(&work);
    let mut report = Report {
        machine: Machine::read(&args.work),
        versions: vec![("headwater".into(), env!("CARGO_PKG_VERSION").into())],
        settings: vec![],
        quick: args.quick,
        busy_before_percent: busy_percent().await,
        seconds: 0.0,
        rows: vec![],
    };
    if wanted(Work::Fdatasync) {
        report.rows.extend(fdatasync_rows(&args)?);
    }
    if Work::value_variants().iter().any(|work| work.is_postgres() && wanted(*work)) {
        let server = match &args.store_postgres {
            Some(url) => Server::external(url),
            None => Server::start(&args.work, &[]).await?,
        };
        describe_server(&server, &mut report).await?;
        postgres::measure(&server, &args.work, plan, &wanted, &mut report).await?;
    }
    sqlite::measure(&args.work, plan, &wanted, &mut report).await?;
    report.seconds = start.elapsed().as_secs_f64();
    println!("{}", report.table());
    write_json(args.json.as_deref(), &report.json())?;
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::draw(&report)).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(report.met())
}

fn fdatasync_rows(args: &BenchArgs) -> Result<Vec<Row>> {
    progress("append + fdatasync");
    let rate = fdatasync_per_second(&args.work, Duration::from_secs(1))?;
    let idle = fdatasync_idle_ms(&args.work, 150)?;
    let row = |work: &str, figure, how: &str| Row {
        work: work.into(),
        headwater: figure,
        beside: Beside::Nothing,
        floor: Floor::None,
        how: format!("{how}; not Headwater's figure but the disk's"),
        rounds: vec![],
    };
    Ok(vec![
        row("limit: append 4 KiB + fdatasync", Figure::new(rate, Unit::PerSecond), "one file, one thread"),
        row(
            "limit: append 4 KiB + fdatasync when idle, p50",
            Figure::new(idle, Unit::Milliseconds),
            "7 ms apart: what one durable publish must wait for on an idle system",
        ),
    ])
}

async fn describe_server(server: &Server, report: &mut Report) -> Result<()> {
    let admin = server.admin().await?;
    let shown = ["server_version", "fsync", "synchronous_commit", "full_page_writes"];
    let changed = server::SETTINGS.iter().chain([&server::PREPARED_TRANSACTIONS]).map(|(name, _)| *name);
    for name in shown.into_iter().chain(changed) {
        let value: String = admin.query_one("SELECT current_setting($1)", &[&name]).await?.get(0);
        if name == "server_version" {
            report.versions.push(("PostgreSQL".into(), value));
        } else {
            report.settings.push((name.into(), value));
        }
    }
    Ok(())
}
