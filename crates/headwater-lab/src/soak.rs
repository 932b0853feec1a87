//! `headwater-lab soak`: publishers and consumer processes under faults, and a checker that counts every message.

mod check;
mod children;
mod faults;
mod handled;
pub(crate) mod history;
mod member;
mod order;
mod outage;
mod publish;
mod publish_postgres;
mod publish_sqlite;
mod stage;
mod verdict;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use headwater::TopicSettings;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use crate::check::OWN_POSTGRES;
use crate::server::{PREPARED_TRANSACTIONS, Server};
use check::Facts;
use children::Children;
pub(crate) use member::{MemberJob, run_member};
use publish::Ledger;
use stage::{GROUPS, Stage};
use verdict::Verdict;

const PUBLISHERS: usize = 16;
/// Few and slow, because every commit wakes all members: this measures whether anything stalls, not throughput.
const PROBES: usize = 2;
/// Options of `soak`.
#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// The store to soak: sqlite:path, postgres://…, or `own-postgres` for a server of the lab's own.
    #[arg(long, env = "HEADWATER_LAB_STORE", hide_env_values = true)]
    store: String,
    /// At least this many committed messages.
    #[arg(long, default_value_t = 50_000)]
    messages: usize,
    /// How many consumer processes are killed at random moments, and started again.
    #[arg(long, default_value_t = 0)]
    kills: usize,
    /// How many times the server crashes at a random moment and recovers; clients keep running (own-postgres).
    #[arg(long, default_value_t = 0)]
    crashes: usize,
    /// How many times the primary is killed and its standby takes over; clients keep running (own-postgres).
    #[arg(long, default_value_t = 0)]
    failovers: usize,
    /// How much the standby has received when it takes over.
    #[arg(long, value_enum, default_value = "synchronous")]
    replication: outage::Standby,
    /// Consumer processes of each of the four groups.
    #[arg(long, default_value_t = 3)]
    members: usize,
    /// The seed of all randomness; chosen and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
    /// How long one transaction stays open while the latency of others is measured (PostgreSQL).
    #[arg(long, default_value_t = 30)]
    hold_seconds: u64,
    /// Gives up after this long.
    #[arg(long, default_value_t = 15)]
    minutes_max: u64,
    /// Checks only that an owner stopped past its lease is refused, and its messages went to another.
    #[arg(long)]
    stopped_holder: bool,
    /// Checks only that a message that kills its worker is buried alone.
    #[arg(long)]
    poison: bool,
    /// Directory for histories and the lab's own server.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/lab")]
    work: PathBuf,
}

/// Runs the requested soak; true if nothing was violated.
pub(crate) async fn run(args: SoakArgs) -> Result<bool> {
    let seed = args.seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000_000));
    println!("seed {seed}");
    std::fs::create_dir_all(&args.work)?;
    let limit = Duration::from_secs(args.minutes_max * 60);
    if args.crashes + args.failovers > 0 {
        outage::check(&args)?;
        let outcome = tokio::time::timeout(limit, Box::pin(outage::soak(&args, seed))).await;
        return outcome
            .with_context(|| format!("not done within {} minutes (seed {seed})", args.minutes_max))?;
    }
    let server = if args.store == OWN_POSTGRES {
        Some(Server::start(&args.work, &[PREPARED_TRANSACTIONS]).await?)
    } else {
        None
    };
    let store = match &server {
        Some(server) => server.create_database("headwater_lab_soak").await?,
        None => args.store.clone(),
    };
    let work = async {
        if !args.stopped_holder && !args.poison {
            return soak(&args, &store, seed).await;
        }
        let mut clean = true;
        if args.stopped_holder {
            clean &= faults::stopped_holder(&args.work, &store, seed).await?;
        }
        if args.poison {
            clean &= faults::poison(&args.work, &store, seed).await?;
        }
        Ok(clean)
    };
    let outcome = tokio::time::timeout(limit, work).await;
    outcome.with_context(|| format!("not done within {} minutes (seed {seed})", args.minutes_max))?
}

/// The main soak.
async fn soak(args: &SoakArgs, store: &str, seed: u64) -> Result<bool> {
    let start = Instant::now();
    let lease = Duration::from_secs(if args.kills > 0 { 2 } else { 300 });
    // Many attempts: a range that was in flight at several kills must not be buried.
    let settings = TopicSettings { lease, max_attempts: 1_000, ..TopicSettings::pub_sub() };
    let stage = Stage::set(&args.work, store, "soak", &settings, &GROUPS, seed).await?;
    let mut children = stage.children();
    for group in GROUPS {
        for member in 0..args.members {
            children.start(member, MemberJob { group: group.into(), ..MemberJob::default() })?;
        }
    }
    let ledger = Ledger::default();
    let mut verdict = Verdict::default();
    flood(args, &stage, &mut children, &ledger, seed, &mut verdict).await?;
    stage.drained(&mut children, Duration::from_secs(240)).await?;
    probe(args, &stage, &ledger, seed, &mut verdict).await?;
    stage.drained(&mut children, Duration::from_secs(120)).await?;
    children.stop().await?;
    let facts = Facts {
        published: ledger.fates(),
        log: Some(stage.log(&stage.topic).await?),
        lease_us: u64::try_from(lease.as_micros())?,
        ..Facts::default()
    };
    for group in GROUPS {
        verdict.add_group(group, &facts, &children.histories(group)?);
    }
    verdict.findings = stage.findings().await?;
    verdict.seconds = start.elapsed().as_secs_f64();
    println!("{}", verdict.table(seed));
    let clean = verdict.is_clean();
    stage.clear(clean).await?;
    Ok(clean)
}

/// Publishes until there are enough messages and kills.
async fn flood(
    args: &SoakArgs,
    stage: &Stage,
    children: &mut Children,
    ledger: &Ledger,
    seed: u64,
    verdict: &mut Verdict,
) -> Result<()> {
    let mut publishers = spawn_publishers(stage, ledger, seed, args.messages, false)?;
    let prepared = stage.postgres().map(|target| {
        let (target, ledger) = (target.clone(), ledger.clone());
        tokio::spawn(async move { target.prepare(ledger, Duration::from_secs(4)).await })
    });
    let mut random = StdRng::seed_from_u64(seed ^ 0x6b69_6c6c);
    let mut said = Instant::now();
    while ledger.committed() < args.messages || verdict.kills < args.kills {
        tokio::time::sleep(Duration::from_millis(random.random_range(50..400))).await;
        if verdict.kills < args.kills {
            children.kill_and_restart(random.random_range(0..children.count())).await?;
            verdict.kills += 1;
        }
        children.ensure_alive()?;
        // A publisher that failed ends the soak at once, instead of waiting for messages that never arrive.
        if let Some(ended) = publishers.try_join_next() {
            ended??;
        }
        if said.elapsed() > Duration::from_secs(5) {
            said = Instant::now();
            eprintln!("· {} messages committed, {} kills", ledger.committed(), verdict.kills);
        }
    }
    if let Some(prepared) = prepared {
        verdict.prepared = Some(prepared.await??);
    }
    ledger.stop();
    while let Some(ended) = publishers.join_next().await {
        ended??;
    }
    Ok(())
}

/// Sixteen publishers; in a run with outages they survive them.
fn spawn_publishers(
    stage: &Stage,
    ledger: &Ledger,
    seed: u64,
    goal: usize,
    survive: bool,
) -> Result<JoinSet<Result<()>>> {
    let mut publishers = JoinSet::new();
    for number in 0..PUBLISHERS {
        let ledger = ledger.clone();
        if let Some(target) = stage.postgres() {
            let target = if survive { target.clone().surviving() } else { target.clone() };
            publishers.spawn(target.flood(ledger, number, seed, goal));
        } else {
            let target = stage.sqlite()?.clone();
            publishers.spawn_blocking(move || target.flood(&ledger, number, seed, goal));
        }
    }
    Ok(publishers)
}

/// Measures latency at a slow pace, on PostgreSQL while one transaction stays open all the time.
async fn probe(
    args: &SoakArgs,
    stage: &Stage,
    ledger: &Ledger,
    seed: u64,
    verdict: &mut Verdict,
) -> Result<()> {
    ledger.resume();
    let mut probes = JoinSet::new();
    for number in 0..PROBES {
        let ledger = ledger.clone();
        if let Some(target) = stage.postgres() {
            probes.spawn(target.clone().probe(ledger, number, seed));
        } else {
            let target = stage.sqlite()?.clone();
            probes.spawn_blocking(move || target.probe(&ledger, number, seed));
        }
    }
    match stage.postgres() {
        Some(target) => {
            verdict.held = Some(Duration::from_secs(args.hold_seconds));
            target.clone().hold_open(ledger.clone(), Duration::from_secs(args.hold_seconds)).await?;
        }
        None => tokio::time::sleep(Duration::from_secs(5)).await,
    }
    ledger.stop();
    while let Some(ended) = probes.join_next().await {
        ended??;
    }
    Ok(())
}
