//! Backfills: see `schema/functions/tracking/backfill.sql`.

use std::time::Duration;

use tokio_postgres::Row;

use crate::backfill::{Backfill, BackfillLimits, BackfillState, BackfillStep};
use crate::error::{Error, Result};
use crate::message::Offset;
use crate::name::{GroupName, Owner, TopicName};
use crate::store::postgres::advance_heads::{advance, batch};
use crate::store::postgres::time::{count, millis, stored};
use crate::store::postgres::{PostgresStore, topic as topics};

/// How long a backfill stays with a worker that makes no step.
const WORKER_MS: i64 = 15_000;

pub(super) async fn start(
    store: &PostgresStore,
    topic: &TopicName,
    group: &GroupName,
    limits: &BackfillLimits,
) -> Result<Backfill> {
    let named = topics::get(store, topic).await?;
    advance(store, named.topic_id).await?;
    let messages_max = i64::try_from(limits.messages_max).unwrap_or(i64::MAX);
    let rows = store
        .connections
        .query(
            &format!("starting a backfill of topic {topic}, group {group}"),
            &store.statements.tracking_backfill_start,
            &[
                &topic.as_str(),
                &group.as_str(),
                &messages_max,
                &batch(limits.rate_max),
                &limits.batch_max.map(batch),
                &limits.target_latency.map(millis),
                &&*store.actor.now(),
                &store.clock.injected(),
            ],
        )
        .await?;
    shown(store, stored(&rows[0], "subscription_id")?).await
}

/// Cancels a running backfill, or resumes a stopped one.
pub(super) async fn turn(
    store: &PostgresStore,
    topic: &TopicName,
    group: &GroupName,
    resume: bool,
) -> Result<Backfill> {
    let rows = store
        .connections
        .query(
            &format!("changing the backfill of topic {topic}, group {group}"),
            &store.statements.tracking_backfill_turn,
            &[&topic.as_str(), &group.as_str(), &resume, &&*store.actor.now(), &store.clock.injected()],
        )
        .await?;
    shown(store, stored(&rows[0], "subscription_id")?).await
}

pub(super) async fn list(store: &PostgresStore) -> Result<Vec<Backfill>> {
    let all: Option<i32> = None;
    let rows = store
        .connections
        .query("listing backfills", &store.statements.tracking_backfill_list, &[&all])
        .await?;
    rows.iter().map(backfill_of).collect()
}

pub(super) async fn step(
    store: &PostgresStore,
    worker: &Owner,
    messages_max: u32,
) -> Result<Option<BackfillStep>> {
    let now = store.clock.injected();
    let rows = store
        .connections
        .query(
            "taking a backfill",
            &store.statements.tracking_backfill_take,
            &[&worker.as_str(), &WORKER_MS, &now],
        )
        .await?;
    let Some(subscription_id) = stored::<_, Option<i32>>(&rows[0], "subscription_id")? else {
        return Ok(None);
    };
    let stepped = store
        .connections
        .query(
            "backfilling",
            &store.statements.tracking_backfill_step,
            &[&subscription_id, &worker.as_str(), &batch(messages_max), &WORKER_MS, &now],
        )
        .await;
    let rows = match stepped {
        // A transient error is retried, by this worker or the next.
        Err(error) if error.is_retryable() => return Err(error),
        Err(error) => return fail(store, subscription_id, worker, error).await,
        Ok(rows) => rows,
    };
    if stored::<_, Option<i64>>(&rows[0], "processed")?.is_none() {
        // Between the two statements it was cancelled, taken by another worker, or deleted with its group.
        return Ok(None);
    }
    let Some(backfill) = of_subscription(store, subscription_id).await? else { return Ok(None) };
    Ok(Some(BackfillStep {
        backfill,
        processed: count(&rows[0], "processed")?,
        changed: count(&rows[0], "changed")?,
    }))
}

/// Stores the error of a batch that was rolled back, and returns it as a step of nothing: an operator has to resume the backfill.
async fn fail(
    store: &PostgresStore,
    subscription_id: i32,
    worker: &Owner,
    error: Error,
) -> Result<Option<BackfillStep>> {
    let text = error.to_string();
    let noted = store
        .connections
        .query(
            "recording a failed backfill",
            &store.statements.tracking_backfill_fail,
            &[&subscription_id, &worker.as_str(), &text],
        )
        .await;
    if let Err(not_noted) = noted {
        tracing::warn!(error = %not_noted, "backfill failure not recorded, another worker will retry");
        return Err(error);
    }
    let backfill = of_subscription(store, subscription_id).await?;
    Ok(backfill.map(|backfill| BackfillStep { backfill, processed: 0, changed: 0 }))
}

async fn shown(store: &PostgresStore, subscription_id: i32) -> Result<Backfill> {
    of_subscription(store, subscription_id).await?.ok_or_else(|| Error::no_such_subscription("?", "?"))
}

/// `None` if its group was deleted.
async fn of_subscription(store: &PostgresStore, subscription_id: i32) -> Result<Option<Backfill>> {
    let rows = store
        .connections
        .query("reading a backfill", &store.statements.tracking_backfill_list, &[&Some(subscription_id)])
        .await?;
    rows.first().map(backfill_of).transpose()
}

fn backfill_of(row: &Row) -> Result<Backfill> {
    let (first, last): (i64, i64) = (stored(row, "first_offset")?, stored(row, "last_offset")?);
    let checkpoint: i64 = stored(row, "checkpoint")?;
    let span = |from: i64, to: i64| u64::try_from(to - from + 1).unwrap_or(0);
    let ran_ms: i64 = stored(row, "ran_ms")?;
    let processed = span(first, checkpoint);
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = if ran_ms > 0 { processed as f64 / (ran_ms as f64 / 1_000.0) } else { 0.0 };
    Ok(Backfill {
        topic: TopicName::new(stored::<_, String>(row, "topic")?)?,
        group: GroupName::new(stored::<_, String>(row, "group_name")?)?,
        state: BackfillState::parse(stored(row, "state")?)?,
        first: Offset(first),
        last: Offset(last),
        checkpoint: Offset(checkpoint),
        processed,
        total: span(first, last),
        created_at: stored(row, "created_at")?,
        progressed_at: stored(row, "progressed_at")?,
        rate,
        rate_max: u32::try_from(stored::<_, i32>(row, "rate_max")?).expect("the schema checks rates"),
        batch_max: stored::<_, Option<i32>>(row, "batch_max")?.map(i32::cast_unsigned),
        target_latency: stored::<_, Option<i64>>(row, "target_latency_ms")?
            .map(|ms| Duration::from_millis(ms.cast_unsigned())),
        error: stored(row, "error")?,
        left_out: count(row, "left_out")?,
    })
}
