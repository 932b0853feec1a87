//! Creating, changing and listing topics; delete and purge are in a file of their own.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::{Json, ToSql};

use super::time::stored;
use super::{PostgresStore, fault};
use crate::error::{Error, ErrorKind, Result};
use crate::message::Offset;
use crate::name::TopicName;
use crate::topic::{Progress, Topic, TopicId, TopicSettings, TopicStatus, exists_otherwise};
use crate::topics::TopicSelection;

pub(super) mod delete;

/// How often the lock of the log is tried, and the pause in between: about five seconds in all.
const LOG_ATTEMPTS: u32 = 12;
const LOG_PAUSE: Duration = Duration::from_millis(300);
const LOCK_NOT_AVAILABLE: &str = "55P03";

pub(super) async fn create(
    store: &PostgresStore,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<Topic> {
    let params: [&(dyn ToSql + Sync); 3] = [&name.as_str(), &Json(settings), &store.clock.injected()];
    save(store, &format!("creating topic {name}"), &store.statements.topic_create, &params).await?;
    let topic = get(store, name).await?;
    if topic.settings != settings.as_stored() {
        return Err(exists_otherwise(name, &topic.settings, settings));
    }
    Ok(topic)
}

pub(super) async fn alter(
    store: &PostgresStore,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<Topic> {
    let params: [&(dyn ToSql + Sync); 4] =
        [&name.as_str(), &Json(settings), &&*store.actor.now(), &store.clock.injected()];
    save(store, &format!("changing topic {name}"), &store.statements.topic_alter, &params).await?;
    get(store, name).await
}

/// Creates, changes or deletes a topic. Creating tables for it needs a lock of the log, which open transactions hold, and publishers and
/// consumers queue behind an attempt: so each attempt is short, and between two attempts the others continue.
async fn save(
    store: &PostgresStore,
    doing: &str,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>> {
    for _ in 1..LOG_ATTEMPTS {
        match store.connections.query(doing, sql, params).await {
            Err(error) if fault::code_is(&error, &[LOCK_NOT_AVAILABLE]) => {
                tokio::time::sleep(LOG_PAUSE).await;
            }
            answer => return answer,
        }
    }
    store.connections.query(doing, sql, params).await.map_err(|error| {
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
    find(store, &TopicSelection::default(), None).await
}

/// The topics of a selection by name, at most this many.
pub(super) async fn find(
    store: &PostgresStore,
    selection: &TopicSelection,
    limit: Option<u32>,
) -> Result<Vec<TopicStatus>> {
    let TopicSelection { name, contains, after } = selection;
    let limit = limit.map(i64::from);
    let params: [&(dyn ToSql + Sync); 4] = [name, contains, after, &limit];
    let rows = store.connections.query("listing topics", &store.statements.topic_list, &params).await?;
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
        counting: count(stored(row, "counting")?),
        heartbeat_timeout: Duration::from_millis(count(stored(row, "heartbeat_timeout_ms")?)),
        first: Offset(stored(row, "first_offset")?),
        watermark: Offset(stored(row, "watermark")?),
        tracking_change: done.zip(total).map(progress),
    })
}

fn topic_of(row: &Row) -> Result<Topic> {
    Ok(Topic {
        topic_id: TopicId(stored(row, "topic_id")?),
        name: TopicName::new(stored::<_, String>(row, "name")?)?,
        settings: stored::<_, Json<_>>(row, "settings")?.0,
    })
}
