//! The rows measured on PostgreSQL. Ours and the peer's rounds alternate, because the machine is noisy.

mod load;
mod plain_sql;
mod waiting;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::engine::Engine;
use super::peers::copy::BareCopy;
use super::peers::pgmq::Pgmq;
use super::peers::pgq::{self, Pgq};
use super::peers::{Peer, missing, or_reason};
use super::report::{Beside, Floor, Report, Row};
use super::{Plan, Work, outbox, progress};
use crate::check::best;
use crate::check::{Figure, Unit};
use crate::server::Server;

const DATABASE: &str = "headwater_lab";
/// The log's table in Headwater's schema.
const LOG_TABLE: &str = "headwater.message";
const DURABLE: &str = "fsync on, every publish durable";
const CONSUME: &str = "claims and acks commit asynchronously (redelivery after a power cut), pgmq's durably";

/// What the measurements share.
struct Context<'a> {
    server: &'a Server,
    plan: Plan,
    engine: Engine,
    url: String,
}

impl Context<'_> {
    /// Writes back pages that earlier rounds left dirty, so that the next round does not pay for it.
    async fn rest(&self) -> Result<()> {
        Ok(self.server.admin().await?.batch_execute("CHECKPOINT").await?)
    }
}

/// Measures every wanted row.
pub(crate) async fn measure(
    server: &Server,
    work: &Path,
    plan: Plan,
    wanted: &dyn Fn(Work) -> bool,
    report: &mut Report,
) -> Result<()> {
    let url = server.create_database(DATABASE).await?;
    let context = Context { server, plan, engine: Engine::open(&url).await?, url };
    // Waiting is measured first, on a server that has nothing else to do.
    if wanted(Work::PgLatency) {
        report.rows.extend(waiting::latency(&context).await?);
    }
    if wanted(Work::PgIdle) {
        report.rows.push(waiting::idle(&context).await?);
    }
    if [Work::PgPublish, Work::PgSend, Work::PgConsume, Work::PgSql].into_iter().any(wanted) {
        progress("PostgreSQL: installing pgmq");
        let pgmq = or_reason("pgmq", Pgmq::install(server, work).await);
        let version = pgmq.as_ref().map_or("missing", |pgmq| pgmq.version.as_str());
        report.versions.push(("pgmq".into(), version.into()));
        if wanted(Work::PgPublish) {
            report.rows.extend(publish(&context, &pgmq).await?);
        }
        if wanted(Work::PgSend) {
            report.rows.push(send(&context, &pgmq).await?);
        }
        if wanted(Work::PgConsume) {
            report.rows.extend(consume(&context, &pgmq, report.versions.as_mut()).await?);
        }
        if wanted(Work::PgSql) {
            report.rows.extend(plain_sql::measure(&context, &pgmq).await?);
        }
        if let Ok(pgmq) = pgmq {
            pgmq.remove(server).await?;
        }
    }
    if wanted(Work::PgOutbox) {
        report.rows.extend(outbox::measure(&context.engine, "PostgreSQL", plan).await?);
    }
    if wanted(Work::PgGroups) {
        report.rows.push(load::groups(&context).await?);
    }
    if wanted(Work::PgWal) {
        report.rows.push(load::wal(&context).await?);
    }
    if wanted(Work::PgLoad) {
        report.rows.extend(load::dead_tuples(&context).await?);
    }
    context.engine.store.close().await?;
    server.drop_database(DATABASE).await
}

async fn publish(context: &Context<'_>, pgmq: &Peer<Pgmq>) -> Result<Vec<Row>> {
    const BATCH: usize = 1_000;
    progress("PostgreSQL: publish in batches of 1,000");
    let Context { engine, plan, .. } = context;
    let topic = engine.topic("publish").await?;
    engine.fill(&topic, BATCH).await?;
    let copy = BareCopy::like(&context.url, LOG_TABLE, BATCH).await?;
    let (mut ours, mut copies, mut theirs) = (vec![], vec![], vec![]);
    for round in 0..plan.rounds {
        for connections in [2, 4] {
            context.rest().await?;
            ours.push(engine.publish_batches(&topic, BATCH, connections, plan.round).await?.per_second());
            context.rest().await?;
            copies.push(copy.run(connections, plan.round).await?.per_second());
            if let Ok(pgmq) = pgmq {
                let queue = format!("publish_{round}_{connections}");
                pgmq.create_queue(&queue).await?;
                context.rest().await?;
                let rate = pgmq.send_batches(&queue, BATCH, connections, plan.round).await?;
                theirs.push(rate.per_second());
                pgmq.drop_queue(&queue).await?;
            }
        }
    }
    let work = "PostgreSQL publish, batches of 1,000";
    let how = format!("best of 2 and 4 connections on each side; {DURABLE}");
    Ok(vec![
        rate_row(work, &ours, Ok(("bare COPY", &copies)), 0.6, how.clone()),
        rate_row(work, &ours, beside("pgmq send_batch", pgmq, &theirs), 1.2, how),
    ])
}

async fn send(context: &Context<'_>, pgmq: &Peer<Pgmq>) -> Result<Row> {
    const SENDERS: usize = 64;
    progress("PostgreSQL: 64 concurrent single sends");
    let Context { engine, plan, .. } = context;
    let topic = engine.topic("send").await?;
    let (mut ours, mut theirs) = (vec![], vec![]);
    for round in 0..plan.rounds {
        context.rest().await?;
        ours.push(engine.send_singles(&topic, SENDERS, plan.round).await?.per_second());
        if let Ok(pgmq) = pgmq {
            let queue = format!("send_{round}");
            pgmq.create_queue(&queue).await?;
            context.rest().await?;
            theirs.push(pgmq.send_singles(&queue, SENDERS, plan.round).await?.per_second());
            pgmq.drop_queue(&queue).await?;
        }
    }
    let how = format!("64 tasks, one producer; pgmq 64 connections; {DURABLE}");
    let peer = beside("pgmq send", pgmq, &theirs);
    Ok(rate_row("PostgreSQL publish, 64 concurrent single sends", &ours, peer, 5.0, how))
}

async fn consume(
    context: &Context<'_>,
    pgmq: &Peer<Pgmq>,
    versions: &mut Vec<(String, String)>,
) -> Result<Vec<Row>> {
    progress("PostgreSQL: filling the log to consume");
    let Context { engine, plan, server, .. } = context;
    let topic = engine.topic("consume").await?;
    engine.fill(&topic, plan.log_messages).await?;
    crate::server::connect(&context.url).await?.batch_execute("ANALYZE").await?;
    // The peer opens its connections before its time is measured; so do we.
    let warm = engine.group(&topic, "warm").await?;
    engine.consume(&warm, 100, 4, Duration::from_millis(200)).await?;
    let mut rows = vec![];
    for (batch, floor) in [(100u32, 2.5), (500, 8.0)] {
        progress(&format!("PostgreSQL: consume in batches of {batch}"));
        let (mut ours, mut theirs) = (vec![], vec![]);
        for round in 0..plan.rounds {
            for consumers in [2, 4] {
                let group = engine.group(&topic, &format!("batch-{batch}-{round}-{consumers}")).await?;
                context.rest().await?;
                ours.push(engine.consume(&group, batch, consumers, plan.round).await?.per_second());
                if let Ok(pgmq) = pgmq {
                    let queue = format!("consume_{batch}_{round}_{consumers}");
                    pgmq.create_queue(&queue).await?;
                    pgmq.fill(&queue, (plan.round.as_secs_f64() * 100_000.0) as usize).await?;
                    context.rest().await?;
                    let rate =
                        pgmq.read_and_delete(&queue, i32::try_from(batch)?, consumers, plan.round).await?;
                    theirs.push(rate.per_second());
                    pgmq.drop_queue(&queue).await?;
                }
            }
        }
        let work = format!("PostgreSQL consume, batch {batch}, every batch acked");
        let how = format!("best of 2 and 4 consumers each; {CONSUME}");
        rows.push(rate_row(&work, &ours, beside("pgmq read + delete", pgmq, &theirs), floor, how));
    }
    progress("PostgreSQL: installing PgQ and filling it");
    let pgq = or_reason("PgQ", Pgq::install(server).await);
    versions.push(("PgQ".into(), pgq.as_ref().map_or("missing", |pgq| pgq.version.as_str()).into()));
    rows.push(drain(context, &topic, &pgq).await?);
    if let Ok(pgq) = pgq {
        pgq.remove(server).await?;
    }
    Ok(rows)
}

async fn drain(context: &Context<'_>, topic: &headwater::TopicName, pgq: &Peer<Pgq>) -> Result<Row> {
    let Context { engine, plan, .. } = context;
    let consumers: Vec<String> = (0..plan.rounds).map(|round| format!("lab_{round}")).collect();
    if let Ok(pgq) = pgq {
        pgq.fill(&consumers, plan.log_messages / 2).await?;
    }
    progress("PostgreSQL: consume in batches of 5,000");
    let (mut ours, mut theirs) = (vec![], vec![]);
    for (round, consumer) in consumers.iter().enumerate() {
        for tasks in [1, 2] {
            let group = engine.group(topic, &format!("drain-{round}-{tasks}")).await?;
            let batch = u32::try_from(pgq::BATCH)?;
            ours.push(engine.consume(&group, batch, tasks, plan.round).await?.per_second());
        }
        if let Ok(pgq) = pgq {
            theirs.push(pgq.drain(consumer, plan.round).await?.per_second());
        }
    }
    let how = "one group, best of 1 and 2 members; one PgQ consumer (it has no competing ones)".into();
    Ok(rate_row("PostgreSQL consume, batch 5,000", &ours, beside("PgQ drain", pgq, &theirs), 1.0, how))
}

/// A peer's rounds, or why there are none.
fn beside<'r, P>(
    name: &'r str,
    peer: &'r Peer<P>,
    rounds: &'r [f64],
) -> Result<(&'r str, &'r [f64]), (&'r str, &'r str)> {
    match peer {
        Ok(_) => Ok((name, rounds)),
        Err(why) => Err((name, why)),
    }
}

/// A row of two rates: the best round of each side.
pub(crate) fn rate_row<'r, R: AsRef<[f64]> + ?Sized>(
    work: &str,
    ours: &[f64],
    theirs: Result<(&'r str, &'r R), (&'r str, &'r str)>,
    floor: f64,
    how: String,
) -> Row {
    let per_second = |rounds| Figure::new(best(rounds), Unit::MessagesPerSecond);
    let (beside, their_rounds) = match theirs {
        Ok((name, rounds)) => {
            let rounds = rounds.as_ref();
            (Beside::Measured { name: name.into(), figure: per_second(rounds) }, rounds)
        }
        Err((name, why)) => (missing(name, why), [].as_slice()),
    };
    let rounds = ours.iter().enumerate().map(|(at, ours)| (*ours, their_rounds.get(at).copied()));
    Row {
        work: work.into(),
        headwater: per_second(ours),
        beside,
        floor: Floor::RatioAtLeast(floor),
        how,
        rounds: rounds.collect(),
    }
}
