//! Consuming in plain SQL, beside pgmq: the same driver, the same connections, the same payload, each statement committed durably on both
//! sides.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use headwater::NewMessage;

use super::super::measure::{Rate, run_tasks};
use super::super::peers::Peer;
use super::super::peers::pgmq::Pgmq;
use super::super::report::Row;
use super::super::{payload_text, progress};
use super::{Context, beside, rate_row};
use crate::server::connect;

const TOPIC: &str = "plain_sql";
/// Longer than any run.
const LEASE_SECONDS: f64 = 300.0;

pub(super) async fn measure(context: &Context<'_>, pgmq: &Peer<Pgmq>) -> Result<Vec<Row>> {
    progress("PostgreSQL: filling the log to read in plain SQL");
    let Context { engine, plan, url, .. } = context;
    let topic = engine.topic(TOPIC).await?;
    let json = NewMessage::new(format!("\"{}\"", payload_text())).content_type("application/json");
    for _ in 0..plan.log_messages.div_ceil(5_000) {
        engine.store.publish(&topic, &vec![json.clone(); 5_000]).await?;
    }
    connect(url).await?.batch_execute("ANALYZE").await?;
    let mut rows = vec![];
    for batch in [100, 1_000] {
        progress(&format!("PostgreSQL: read and ack in plain SQL, {batch} at once"));
        let (mut ours, mut theirs) = (vec![], vec![]);
        for round in 0..plan.rounds {
            for consumers in [2, 4] {
                let group = format!("sql_{batch}_{round}_{consumers}");
                engine.group(&topic, &group).await?;
                context.rest().await?;
                ours.push(read_and_ack(url, &group, batch, consumers, plan.round).await?.per_second());
                if let Ok(pgmq) = pgmq {
                    pgmq.create_queue(&group).await?;
                    pgmq.fill(&group, (plan.round.as_secs_f64() * 100_000.0) as usize).await?;
                    context.rest().await?;
                    theirs
                        .push(pgmq.read_and_delete(&group, batch, consumers, plan.round).await?.per_second());
                    pgmq.drop_queue(&group).await?;
                }
            }
        }
        let work = format!("PostgreSQL read + ack in plain SQL, {batch} at once");
        let how = "best of 2 and 4 connections each; reads and acks commit durably on both sides".to_owned();
        rows.push(rate_row(&work, &ours, beside("pgmq read + delete", pgmq, &theirs), 2.0, how));
    }
    Ok(rows)
}

/// `read` and `ack` in a loop on each connection, until the time or the log is used up.
async fn read_and_ack(
    url: &str,
    group: &str,
    batch: i32,
    connections: usize,
    during: Duration,
) -> Result<Rate> {
    let clients = futures_util::future::try_join_all((0..connections).map(|_| connect(url))).await?;
    let (clients, group): (_, Arc<str>) = (Arc::new(clients), group.into());
    run_tasks(connections, during, move |task, run| {
        let (clients, group) = (Arc::clone(&clients), Arc::clone(&group));
        async move {
            let client = &clients[task];
            let read = "SELECT token, message_offset, payload FROM headwater.read($1, $2, $3, $4)";
            let (read, ack) =
                (client.prepare(read).await?, client.prepare("SELECT headwater.ack($1)").await?);
            while run.goes_on() {
                let rows = client.query(&read, &[&TOPIC, &&*group, &batch, &LEASE_SECONDS]).await?;
                let mut tokens: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
                tokens.dedup();
                if tokens.is_empty() {
                    break;
                }
                let mut acked = 0;
                for token in tokens {
                    acked += client.query_one(&ack, &[&token]).await?.get::<_, i64>(0);
                }
                ensure!(acked == i64::try_from(rows.len())?, "{acked} of {} acked", rows.len());
                run.count(rows.len());
            }
            Ok(())
        }
    })
    .await
}
