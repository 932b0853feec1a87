//! Costs of load on PostgreSQL besides time: one more group, WAL, dead tuples.

use std::time::{Duration, Instant};

use anyhow::Result;
use headwater::store::Subscription;
use tokio_postgres::Client;

use super::super::progress;
use super::super::report::{Beside, Floor, Row};
use super::{Context, DATABASE};
use crate::check::median;
use crate::check::{Figure, Unit};
use crate::machine::cpu_time;
use crate::server::connect;

/// The cost of one more consumer group in the same process, in percent of the cost of publishing the same messages.
pub(super) async fn groups(context: &Context<'_>) -> Result<Row> {
    const MESSAGES: usize = 200_000;
    const BATCH: u32 = 1_000;
    progress("PostgreSQL: cost of one more group");
    let engine = &context.engine;
    let topic = engine.topic("groups").await?;
    // A first fill, so that connections and pages are warm for the measured one.
    engine.fill(&topic, 20_000).await?;
    let backends = context.server.backends(DATABASE).await?;
    let cost = |before: (Duration, Instant)| -> Result<f64> {
        // A process or thread that ended in between takes its time along.
        let cpu = cpu_time(&backends)?.saturating_sub(before.0).as_secs_f64();
        // Where the server's processes are not visible, only time can be compared.
        Ok(if backends.is_empty() { before.1.elapsed().as_secs_f64() } else { cpu })
    };
    let now = || -> Result<(Duration, Instant)> { Ok((cpu_time(&backends)?, Instant::now())) };
    let mut percents = vec![];
    for round in 0..context.plan.rounds {
        let groups = subscribe(context, &topic, round).await?;
        engine.consume_groups(&groups, BATCH).await?;
        let before = now()?;
        for _ in 0..MESSAGES / 1_000 {
            engine.fill(&topic, 1_000).await?;
        }
        let publishing = cost(before)?;
        // The first reader pays for hint bits and cold pages. It is not measured.
        engine.consume_groups(&groups[..1], BATCH).await?;
        let before = now()?;
        engine.consume_groups(&groups[1..3], BATCH).await?;
        let two = cost(before)?;
        let before = now()?;
        engine.consume_groups(&groups[3..], BATCH).await?;
        let ten = cost(before)?;
        percents.push((ten - two) / 8.0 / publishing * 100.0);
    }
    let percent = median(&percents).max(0.0);
    Ok(Row {
        work: "PostgreSQL cost of one more group in the same process".into(),
        headwater: Figure::new(percent, Unit::Percent),
        beside: Beside::Nothing,
        floor: Floor::AtMost(5.0),
        how: "processor time of client and server, 10 groups against 2, of publishing's; batches of 1,000"
            .into(),
        rounds: percents.into_iter().map(|percent| (percent, None)).collect(),
    })
}

/// The groups of one round: one for the warm-up, two for the small measurement and ten for the large one.
async fn subscribe(
    context: &Context<'_>,
    topic: &headwater::TopicName,
    round: usize,
) -> Result<Vec<Subscription>> {
    let mut groups = vec![];
    for group in 0..13 {
        groups.push(context.engine.group(topic, &format!("round-{round}-{group}")).await?);
    }
    Ok(groups)
}

/// WAL bytes per message published and consumed.
pub(super) async fn wal(context: &Context<'_>) -> Result<Row> {
    const MESSAGES: usize = 100_000;
    progress("PostgreSQL: WAL per message");
    let engine = &context.engine;
    let client = connect(&context.url).await?;
    let topic = engine.topic("wal").await?;
    let group = engine.group(&topic, "wal").await?;
    // Pages written since the last checkpoint are logged as changes only: the full-page images are in the first round.
    engine.publish_batches(&topic, 1_000, 1, Duration::from_millis(300)).await?;
    engine.consume(&group, 100, 4, Duration::from_secs(30)).await?;
    let start = wal_position(&client).await?;
    for _ in 0..MESSAGES / 1_000 {
        engine.fill(&topic, 1_000).await?;
    }
    let published = wal_position(&client).await?;
    let rate = engine.consume(&group, 100, 4, Duration::from_secs(60)).await?;
    let consumed = wal_position(&client).await?;
    let per_message = |bytes: i64| bytes as f64 / MESSAGES as f64;
    let how = format!(
        "{:.0} published in batches of 1,000 + {:.0} consumed in batches of 100 ({} messages)",
        per_message(published - start),
        per_message(consumed - published),
        rate.messages
    );
    Ok(Row {
        work: "PostgreSQL WAL per message, published and consumed".into(),
        headwater: Figure::new(per_message(consumed - start), Unit::Bytes),
        beside: Beside::Nothing,
        floor: Floor::AtMost(400.0),
        how,
        rounds: vec![],
    })
}

async fn wal_position(client: &Client) -> Result<i64> {
    let row = client.query_one("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint", &[]).await?;
    Ok(row.get(0))
}

/// Dead tuples in the log, and growth of every other table, under steady publishing and consuming.
pub(super) async fn dead_tuples(context: &Context<'_>) -> Result<Vec<Row>> {
    progress(&format!("PostgreSQL: {} s of load", context.plan.load.as_secs()));
    let engine = &context.engine;
    let client = connect(&context.url).await?;
    let topic = engine.topic("load").await?;
    let group = engine.group(&topic, "load").await?;
    let publisher = {
        let (engine, topic, load) = (engine.clone(), topic.clone(), context.plan.load);
        tokio::spawn(async move { publish_paced(&engine, &topic, load).await })
    };
    let start = Instant::now();
    let mut at_half = None;
    while start.elapsed() < context.plan.load {
        engine.consume(&group, 100, 2, Duration::from_millis(500)).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        if at_half.is_none() && start.elapsed() > context.plan.load / 2 {
            at_half = Some(others_bytes(&client).await?);
        }
    }
    let published = publisher.await??;
    engine.consume(&group, 1_000, 2, Duration::from_secs(30)).await?;
    let at_end = others_bytes(&client).await?;
    // Backends report their counts at most once a second.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let log_dead = dead(&client, true).await?;
    let others_dead = dead(&client, false).await?;
    let bound = 1.5 * at_half.unwrap_or(at_end) as f64;
    let how = format!("{published} messages published and consumed in {} s", context.plan.load.as_secs());
    let row = |work: &str, amount, unit, most, how| Row {
        work: work.into(),
        headwater: Figure::new(amount, unit),
        beside: Beside::Nothing,
        floor: Floor::AtMost(most),
        how,
        rounds: vec![],
    };
    Ok(vec![
        row("PostgreSQL dead tuples in the log after load", log_dead as f64, Unit::Count, 0.0, how.clone()),
        row(
            "PostgreSQL bytes of all other tables after load",
            at_end as f64,
            Unit::Bytes,
            bound.max(BYTES_ALWAYS_FINE),
            format!(
                "{how}; at most 1.5 x their size at half time, or 8 MiB; {others_dead} dead tuples at the end"
            ),
        ),
    ])
}

/// Small tables double by a page or two; only above this is growth worth judging.
const BYTES_ALWAYS_FINE: f64 = 8.0 * 1024.0 * 1024.0;

/// About 20,000 messages a second in batches of 100.
async fn publish_paced(
    engine: &super::Engine,
    topic: &headwater::TopicName,
    during: Duration,
) -> Result<u64> {
    let (start, mut published) = (Instant::now(), 0);
    let mut interval = tokio::time::interval(Duration::from_millis(5));
    while start.elapsed() < during {
        interval.tick().await;
        engine.fill(topic, 100).await?;
        published += 100;
    }
    Ok(published)
}

/// The size with indexes of everything in Headwater's schema that is not the log.
async fn others_bytes(client: &Client) -> Result<i64> {
    let sql = "SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint FROM pg_stat_user_tables
               WHERE schemaname = 'headwater' AND relname NOT LIKE 'message%'";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// Dead tuples of the log's tables, or of all others.
async fn dead(client: &Client, of_log: bool) -> Result<i64> {
    let sql = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables
               WHERE schemaname = 'headwater' AND (relname LIKE 'message%') = $1";
    Ok(client.query_one(sql, &[&of_log]).await?.get(0))
}
