//! Deleting and purging topics: see `schema/functions/topic_delete.sql`.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::{LOCK_NOT_AVAILABLE, LOG_ATTEMPTS, LOG_PAUSE, save};
use crate::error::{ErrorKind, Result};
use crate::name::{GroupName, TopicName};
use crate::store::postgres::time::{count, stored};
use crate::store::postgres::{PostgresStore, fault};
use crate::topic::{Removal, TopicContents, TopicId};

/// Rows that one step removes at most, and fewer if their payloads are large.
const ROWS_PER_STEP: i32 = 1_000;

/// The pause between two steps, in which others get the disk.
const REST: Duration = Duration::from_millis(1);

pub(in crate::store::postgres) async fn delete(
    store: &PostgresStore,
    name: &TopicName,
    removal: Removal,
) -> Result<TopicContents> {
    if removal == Removal::DryRun {
        return contents(store, name).await;
    }
    let forced = removal == Removal::Forced;
    let params: [&(dyn ToSql + Sync); 4] =
        [&name.as_str(), &forced, &&*store.actor.now(), &store.clock.injected()];
    let doing = format!("deleting topic {name}");
    let rows = save(store, &doing, &store.statements.topic_delete, &params).await?;
    let contents = removed(&rows[0], "delete", name, removal)?;
    store.hub.wake(TopicId(stored(&rows[0], "topic_id")?));
    if let Err(error) = empty_deleted(store).await {
        tracing::info!(topic = name.as_str(), %error, "rows of a deleted topic left to maintenance");
    }
    Ok(contents)
}

/// Removes what deleted topics left, step by step. A topic that fails, or whose table's lock stays taken, is left for the
/// next run and does not keep the others: the first error is returned at the end.
pub(in crate::store::postgres) async fn empty_deleted(store: &PostgresStore) -> Result<()> {
    let (mut refused, mut failed) = (0, None);
    let mut next = empty_step(store, 0, 0).await?;
    while let Some(topic) = next {
        next = match empty_step(store, ROWS_PER_STEP, topic).await {
            Err(error) if fault::code_is(&error, &[LOCK_NOT_AVAILABLE]) && refused < LOG_ATTEMPTS => {
                refused += 1;
                tokio::time::sleep(LOG_PAUSE).await;
                next
            }
            Err(error) => {
                refused = 0;
                failed.get_or_insert(error);
                empty_step(store, 0, topic + 1).await?
            }
            Ok(next) => {
                tokio::time::sleep(REST).await;
                next
            }
        };
    }
    failed.map_or(Ok(()), Err)
}

/// A step for the first deleted topic from a number on. Returns which one it was, `None` if there is none.
async fn empty_step(store: &PostgresStore, rows_max: i32, from: i32) -> Result<Option<i32>> {
    let (doing, sql) = ("removing rows of a deleted topic", &store.statements.topic_empty_deleted);
    let rows = store.connections.query(doing, sql, &[&rows_max, &from]).await?;
    stored(&rows[0], "topic_id")
}

pub(in crate::store::postgres) async fn purge(
    store: &PostgresStore,
    name: &TopicName,
    removal: Removal,
) -> Result<TopicContents> {
    if removal == Removal::DryRun {
        return contents(store, name).await;
    }
    let forced = removal == Removal::Forced;
    let params: [&(dyn ToSql + Sync); 4] =
        [&name.as_str(), &forced, &&*store.actor.now(), &store.clock.injected()];
    let doing = format!("purging topic {name}");
    let rows = store.connections.query(&doing, &store.statements.topic_purge, &params).await?;
    let contents = removed(&rows[0], "purge", name, removal)?;
    let topic: i32 = stored(&rows[0], "topic_id")?;
    store.hub.wake(TopicId(topic));
    let offsets: String = stored(&rows[0], "offsets")?;
    let mut from: Option<i64> = Some(stored(&rows[0], "first_offset")?);
    while let Some(first) = from {
        let params: [&(dyn ToSql + Sync); 4] = [&topic, &offsets, &first, &ROWS_PER_STEP];
        from = match store.connections.query(&doing, &store.statements.topic_remove_purged, &params).await {
            Ok(rows) => stored(&rows[0], "next_offset")?,
            // The topic was deleted meanwhile, with its messages.
            Err(error) if error.kind() == ErrorKind::NoSuchTopic => None,
            Err(error) => return Err(error),
        };
        tokio::time::sleep(REST).await;
    }
    Ok(contents)
}

async fn contents(store: &PostgresStore, name: &TopicName) -> Result<TopicContents> {
    let doing = format!("reading the contents of topic {name}");
    let params: [&(dyn ToSql + Sync); 2] = [&name.as_str(), &store.clock.injected()];
    let rows = store.connections.query(&doing, &store.statements.topic_contents, &params).await?;
    contents_of(&rows[0])
}

/// What was removed, or the refusal.
fn removed(row: &Row, act: &str, name: &TopicName, removal: Removal) -> Result<TopicContents> {
    let contents = contents_of(row)?;
    if !stored::<_, bool>(row, "removed")? {
        removal.check(act, name.as_str(), &contents.served)?;
    }
    Ok(contents)
}

fn contents_of(row: &Row) -> Result<TopicContents> {
    let groups: Vec<String> = stored(row, "served")?;
    let processes: Vec<i64> = stored(row, "processes")?;
    let served = groups
        .into_iter()
        .zip(processes)
        .map(|(group, processes)| Ok((GroupName::new(group)?, u32::try_from(processes).unwrap_or(u32::MAX))));
    Ok(TopicContents {
        messages: count(row, "messages")?,
        scheduled: count(row, "scheduled")?,
        groups: count(row, "groups")?,
        leases: count(row, "leases")?,
        dead_letters: count(row, "dead_letters")?,
        served: served.collect::<Result<_>>()?,
    })
}
