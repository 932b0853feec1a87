//! The rows measured on SQLite, beside the embedded peers.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::engine::Engine;
use super::measure::Rate;
use super::peers::python::{HONKER, LITEQUEUE, Package, PythonPeer};
use super::peers::{Peer, or_reason};
use super::postgres::rate_row;
use super::report::{Beside, Floor, Report, Row};
use super::{Plan, Work, outbox, progress, waiting};
use crate::check::best;
use crate::check::{Figure, Unit};

const FULL: &str = "WAL, synchronous = FULL on both sides";

/// Measures every wanted row, each on files of its own.
pub(crate) async fn measure(
    work: &Path,
    plan: Plan,
    wanted: &dyn Fn(Work) -> bool,
    report: &mut Report,
) -> Result<()> {
    let files = tempfile::Builder::new().prefix("sqlite-").tempdir_in(work)?;
    report.versions.push(("SQLite".into(), rusqlite::version().into()));
    if wanted(Work::SqliteLatency) {
        report.rows.extend(latency(files.path(), plan).await?);
    }
    if wanted(Work::SqliteIdle) {
        report.rows.push(idle(files.path(), plan).await?);
    }
    if wanted(Work::SqlitePublish) || wanted(Work::SqliteSend) {
        let mut litequeue = start(LITEQUEUE, work, files.path(), report);
        if wanted(Work::SqlitePublish) {
            report.rows.push(publish(files.path(), plan, &mut litequeue).await?);
        }
        if wanted(Work::SqliteSend) {
            report.rows.push(send(files.path(), plan, &mut litequeue).await?);
        }
    }
    if wanted(Work::SqliteOutbox) {
        let engine = open(files.path(), "outbox").await?;
        report.rows.extend(outbox::measure(&engine, "SQLite", plan).await?);
        engine.store.close().await?;
    }
    if wanted(Work::SqliteConsume) {
        let mut honker = start(HONKER, work, files.path(), report);
        report.rows.extend(consume(files.path(), plan, &mut honker).await?);
    }
    Ok(())
}

fn start(package: Package, work: &Path, files: &Path, report: &mut Report) -> Peer<PythonPeer> {
    let peer = or_reason(package.name, PythonPeer::start(package, work, &files.join(package.name)));
    let version = peer.as_ref().map_or("missing", |peer| peer.version.as_str());
    report.versions.push((package.name.into(), version.into()));
    peer
}

async fn open(files: &Path, name: &str) -> Result<Engine> {
    Engine::open(&format!("sqlite:{}", files.join(format!("{name}.db")).display())).await
}

/// One round of a Python peer, off the runtime's threads.
fn peer_round(
    peer: &mut Peer<PythonPeer>,
    work: &str,
    during: Duration,
    rounds: &mut Vec<f64>,
) -> Result<()> {
    if let Ok(peer) = peer {
        let rate: Rate = tokio::task::block_in_place(|| peer.run(work, during))?;
        rounds.push(rate.per_second());
    }
    Ok(())
}

fn beside<'r>(
    name: &'r str,
    peer: &'r Peer<PythonPeer>,
    rounds: &'r Vec<f64>,
) -> Result<(&'r str, &'r Vec<f64>), (&'r str, &'r str)> {
    match peer {
        Ok(_) => Ok((name, rounds)),
        Err(why) => Err((name, why)),
    }
}

async fn publish(files: &Path, plan: Plan, litequeue: &mut Peer<PythonPeer>) -> Result<Row> {
    progress("SQLite: publish in batches of 100");
    let engine = open(files, "publish").await?;
    let topic = engine.topic("publish").await?;
    let (mut ours, mut theirs) = (vec![], vec![]);
    for _ in 0..plan.rounds {
        for tasks in [1, 4] {
            ours.push(engine.publish_batches(&topic, 100, tasks, plan.round).await?.per_second());
            peer_round(litequeue, "put_batch", plan.round, &mut theirs)?;
        }
    }
    engine.store.close().await?;
    let how = format!("best of 1 and 4 tasks; litequeue 100 puts in a transaction; {FULL}");
    let peer = beside("litequeue batched put", litequeue, &theirs);
    Ok(rate_row("SQLite publish, FULL, batches of 100", &ours, peer, 2.5, how))
}

async fn send(files: &Path, plan: Plan, litequeue: &mut Peer<PythonPeer>) -> Result<Row> {
    progress("SQLite: 64 concurrent single sends");
    let engine = open(files, "send").await?;
    let topic = engine.topic("send").await?;
    let (mut ours, mut theirs) = (vec![], vec![]);
    for _ in 0..plan.rounds {
        ours.push(engine.send_singles(&topic, 64, plan.round).await?.per_second());
        peer_round(litequeue, "put", plan.round, &mut theirs)?;
    }
    engine.store.close().await?;
    let how = format!("64 tasks; litequeue one put after another; {FULL}");
    let peer = beside("litequeue single put", litequeue, &theirs);
    Ok(rate_row("SQLite publish, FULL, 64 concurrent single sends", &ours, peer, 10.0, how))
}

async fn consume(files: &Path, plan: Plan, honker: &mut Peer<PythonPeer>) -> Result<Vec<Row>> {
    const SMALL: usize = 10_000;
    progress(&format!("SQLite: filling a backlog of {} messages", plan.backlog_messages));
    let engine = open(files, "consume").await?;
    let (small, large) = (engine.topic("small").await?, engine.topic("large").await?);
    engine.fill(&small, SMALL).await?;
    engine.fill(&large, plan.backlog_messages).await?;
    progress("SQLite: consume in batches of 100");
    let (mut ours, mut large_rounds, mut theirs) = (vec![], vec![], vec![]);
    for round in 0..plan.rounds {
        ours.push(small_backlog(&engine, &small, round, plan.round).await?);
        if let Ok(peer) = honker {
            tokio::task::block_in_place(|| peer.fill(SMALL))?;
        }
        peer_round(honker, "claim_ack", plan.round, &mut theirs)?;
        let group = engine.group(&large, &format!("large-{round}")).await?;
        large_rounds.push(engine.consume(&group, 100, 1, plan.round).await?.per_second());
    }
    engine.store.close().await?;
    let asynchronous = "claims and acks with synchronous = NORMAL on both sides";
    let how = format!("10 thousand waiting in each of many groups; one consumer; {asynchronous}");
    let peer = beside("honker claim_batch + ack_batch", honker, &theirs);
    let judged = rate_row("SQLite consume, batch 100", &ours, peer, 3.0, how);
    let work = format!("SQLite consume, batch 100, {} waiting", plan.backlog_messages);
    let how = "against our own rate at 10 thousand; one fifth is allowed for noise".to_owned();
    let equal =
        rate_row(&work, &large_rounds, Ok(("headwater at 10 thousand", &vec![best(&ours)])), 0.8, how);
    Ok(vec![judged, equal])
}

/// Drains ten thousand messages repeatedly, each time for a new group, until the time is over: a backlog of that size
/// is drained in a moment.
async fn small_backlog(
    engine: &Engine,
    topic: &headwater::TopicName,
    round: usize,
    during: Duration,
) -> Result<f64> {
    let (mut messages, mut elapsed) = (0, Duration::ZERO);
    for pass in 0.. {
        if elapsed >= during {
            break;
        }
        let group = engine.group(topic, &format!("small-{round}-{pass}")).await?;
        let rate = engine.consume(&group, 100, 1, during).await?;
        messages += rate.messages;
        elapsed += rate.elapsed;
    }
    Ok(Rate { messages, elapsed }.per_second())
}

async fn latency(files: &Path, plan: Plan) -> Result<Vec<Row>> {
    progress("SQLite: latency");
    let engine = open(files, "latency").await?;
    let other = open(files, "latency").await?;
    let topic = engine.topic("latency").await?;
    let within = waiting::latency(&engine, &engine, &topic, "within", plan.latency_samples).await?;
    let across = waiting::latency(&engine, &other, &topic, "across", plan.latency_samples).await?;
    other.store.close().await?;
    engine.store.close().await?;
    let row = |work: &str, amount, floor, how: &str| Row {
        work: work.into(),
        headwater: Figure::new(amount, Unit::Milliseconds),
        beside: Beside::Nothing,
        floor,
        how: how.into(),
        rounds: vec![],
    };
    let how = "publish call (with its fsync) to message fetched, idle, one process";
    let apart = "the same, publisher and consumer on separate stores (data_version)";
    Ok(vec![
        row("SQLite latency, p50", within.p50_ms, Floor::AtMost(0.5), how),
        row("SQLite latency, p99", within.p99_ms, Floor::None, how),
        row("SQLite latency across stores, p50", across.p50_ms, Floor::None, apart),
    ])
}

async fn idle(files: &Path, plan: Plan) -> Result<Row> {
    progress("SQLite: idle cost");
    let engine = open(files, "idle").await?;
    let topic = engine.topic("idle").await?;
    let none = async || Ok(vec![]);
    let percent = waiting::idle_percent(&engine, &topic, plan.idle, Duration::from_millis(500), none).await?;
    engine.store.close().await?;
    Ok(waiting::idle_row("SQLite idle cost of 4 waiting consumers", percent, "of a core, this process"))
}
