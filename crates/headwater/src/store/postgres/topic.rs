//! Creating, changing and listing topics.

use std::time::Duration;

use serde_json::json;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::time::{millis, stored};
use super::{PostgresStore, fault};
use crate::error::{Error, ErrorKind, Result};
use crate::message::Offset;
use crate::name::TopicName;
use crate::topic::{
    Ordering, Progress, Semantics, Storage, Topic, TopicId, TopicSettings, TopicStatus, Tracking,
    exists_otherwise,
};

/// How often the log is asked for, and the pause in between: about five seconds in all.
const LOG_ATTEMPTS: u32 = 12;
const LOG_PAUSE: Duration = Duration::from_millis(300);
const LOCK_NOT_AVAILABLE: &str = "55P03";

pub(super) async fn create(
    store: &PostgresStore,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<Topic> {
    settings.validate()?;
    let params: [&(dyn ToSql + Sync); 3] = [&name.as_str(), &columns_of(settings), &store.clock.injected()];
    save(store, &format!("creating topic {name}"), &store.statements.topic_create, &params).await?;
    let topic = get(store, name).await?;
    // As they are stored: durations are kept in milliseconds.
    if columns_of(&topic.settings) != columns_of(settings) {
        return Err(exists_otherwise(name, &topic.settings, settings));
    }
    Ok(topic)
}

pub(super) async fn alter(
    store: &PostgresStore,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<Topic> {
    settings.validate()?;
    let params: [&(dyn ToSql + Sync); 4] =
        [&name.as_str(), &columns_of(settings), &store.actor, &store.clock.injected()];
    save(store, &format!("changing topic {name}"), &store.statements.alter_topic, &params).await?;
    get(store, name).await
}

/// Creates or changes a topic. Tables of its own need the log for a moment, which open transactions hold, and publishers and
/// consumers wait behind an attempt: so each attempt is short, and between two of them the others continue.
async fn save(store: &PostgresStore, doing: &str, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<()> {
    for _ in 1..LOG_ATTEMPTS {
        match store.connections.query(doing, sql, params).await {
            Err(error) if fault::code_is(&error, &[LOCK_NOT_AVAILABLE]) => {
                tokio::time::sleep(LOG_PAUSE).await;
            }
            answer => return answer.map(drop),
        }
    }
    store.connections.query(doing, sql, params).await.map(drop).map_err(|error| {
        if !fault::code_is(&error, &[LOCK_NOT_AVAILABLE]) {
            return error;
        }
        let text = format!(
            "database busy while {doing}: a transaction that has published or read messages stays open; \
             end it (pg_stat_activity shows it), or try again"
        );
        Error::with_source(ErrorKind::Busy, text, error)
    })
}

pub(super) async fn get(store: &PostgresStore, name: &TopicName) -> Result<Topic> {
    let doing = format!("reading topic {name}");
    let rows = store.connections.query(&doing, &store.statements.topic_get, &[&name.as_str()]).await?;
    rows.first().map_or_else(|| Err(Error::no_such_topic(name.as_str())), topic_of)
}

pub(super) async fn list(store: &PostgresStore) -> Result<Vec<TopicStatus>> {
    let rows = store.connections.query("listing topics", &store.statements.topic_list, &[]).await?;
    rows.iter().map(status_of).collect()
}

fn status_of(row: &Row) -> Result<TopicStatus> {
    let count = |number: i64| u64::try_from(number).expect("a count is not negative");
    let (done, total): (Option<i64>, Option<i64>) =
        (stored(row, "change_done")?, stored(row, "change_total")?);
    let progress = |(done, total): (i64, i64)| Progress { done: count(done.min(total)), total: count(total) };
    Ok(TopicStatus {
        topic: topic_of(row)?,
        head: Offset(stored(row, "head")?),
        gaps: count(stored(row, "gaps")?),
        scheduled: count(stored(row, "scheduled")?),
        subscriptions: count(stored(row, "subscriptions")?),
        first: Offset(stored(row, "first_offset")?),
        watermark: Offset(stored(row, "watermark")?),
        tracking_change: done.zip(total).map(progress),
    })
}

/// Settings as the columns of the table `topic`, in JSON.
fn columns_of(settings: &TopicSettings) -> String {
    let (storage, partition, partition_rows) = settings.storage.words();
    json!({
        "semantics": settings.semantics.as_str(),
        "tracking": settings.tracking.as_str(),
        "message_retention_ms": settings.message_retention.map(millis),
        "max_retention_ms": settings.max_retention.map(millis),
        "zero_subscription_retention_ms": millis(settings.zero_subscription_retention),
        "block_writes": settings.block_writes_on_zero_subscriptions,
        "zombie_subscription_ttl_ms": millis(settings.zombie_subscription_ttl),
        "lease_ms": millis(settings.lease),
        "max_attempts": settings.max_attempts,
        "backoff_initial_ms": millis(settings.backoff_initial),
        "backoff_max_ms": millis(settings.backoff_max),
        "ordering": settings.ordering.as_str(),
        "lanes": settings.lanes,
        "storage": storage,
        "partition": partition,
        "partition_rows": partition_rows,
        "payload_bytes_max": settings.payload_bytes_max,
        "dedup_window_ms": millis(settings.dedup_window),
        "heartbeat_interval_ms": millis(settings.heartbeat_interval),
        "heartbeat_timeout_ms": millis(settings.heartbeat_timeout),
        "ack_log": settings.ack_log,
        "gap_patience_ms": millis(settings.gap_patience),
    })
    .to_string()
}

pub(super) fn topic_of(row: &Row) -> Result<Topic> {
    let duration =
        |millis: i64| Duration::from_millis(u64::try_from(millis).expect("the schema checks durations"));
    let millis = |column: &str| stored(row, column).map(duration);
    let maybe = |column: &str| stored::<_, Option<i64>>(row, column).map(|millis| millis.map(duration));
    let number = |column: &str| {
        stored::<_, i32>(row, column).map(|number| u32::try_from(number).expect("the schema checks numbers"))
    };
    Ok(Topic {
        topic_id: TopicId(stored(row, "topic_id")?),
        name: TopicName::new(stored::<_, String>(row, "name")?)?,
        settings: TopicSettings {
            semantics: Semantics::parse(stored(row, "semantics")?)?,
            tracking: Tracking::parse(stored(row, "tracking")?)?,
            message_retention: maybe("message_retention_ms")?,
            max_retention: maybe("max_retention_ms")?,
            zero_subscription_retention: millis("zero_subscription_retention_ms")?,
            block_writes_on_zero_subscriptions: stored(row, "block_writes")?,
            zombie_subscription_ttl: millis("zombie_subscription_ttl_ms")?,
            lease: millis("lease_ms")?,
            max_attempts: number("max_attempts")?,
            backoff_initial: millis("backoff_initial_ms")?,
            backoff_max: millis("backoff_max_ms")?,
            ordering: Ordering::parse(stored(row, "ordering")?)?,
            lanes: u16::try_from(number("lanes")?).expect("lanes fit 16 bits"),
            storage: Storage::parse(
                stored(row, "storage")?,
                stored(row, "partition")?,
                stored(row, "partition_rows")?,
            )?,
            payload_bytes_max: number("payload_bytes_max")? as usize,
            dedup_window: millis("dedup_window_ms")?,
            heartbeat_interval: millis("heartbeat_interval_ms")?,
            heartbeat_timeout: millis("heartbeat_timeout_ms")?,
            ack_log: stored(row, "ack_log")?,
            gap_patience: millis("gap_patience_ms")?,
        },
    })
}
