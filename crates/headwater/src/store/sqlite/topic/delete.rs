//! Deleting a topic: it is gone in one transaction, and what it stored is removed afterwards, in steps.
//!
//! A publish finds its topic by name in the transaction that writes, and one transaction writes at a time: so a publish
//! is committed before the deletion, and deleted with the topic, or begins after it and finds no topic or a new one. The
//! number of a topic is never used again: what a program still knows of the deleted one leads to nothing.

use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Value, json};

use super::get;
use crate::name::{GroupName, TopicName};
use crate::store::sqlite::fault::Attempt;
use crate::store::sqlite::ranges::Ranges;
use crate::store::sqlite::step_bytes::Page;
use crate::store::sqlite::work::{Work, wake};
use crate::store::sqlite::{OFFSET_MAX, audit, decode, log, millis, state, tracking};
use crate::topic::{Removal, Topic, TopicContents, TopicId};

/// Rows that one step deletes at most, and fewer if their payloads are large: the writer is shared.
const ROWS_PER_STEP: u32 = 1_000;

/// Up to how many offsets stored messages are counted one by one.
const COUNTED_MAX: i64 = 1_000_000;

/// What a topic holds. Counts messages, so it runs on a reader.
pub(in crate::store::sqlite) fn contents(
    connection: &Connection,
    name: &TopicName,
    now_ms: i64,
) -> Attempt<TopicContents> {
    let topic = get(connection, name)?;
    let messages = match log::bounds(connection, topic.topic_id)? {
        Some((first, last)) if last - first >= COUNTED_MAX => last.abs_diff(first) + 1,
        Some((first, last)) => log::count(connection, topic.topic_id, &Ranges::of(first, last))?.messages,
        None => 0,
    };
    let mut statement = connection.prepare_cached(sql!(topic.contents))?;
    let mut contents = statement.query_row(params![topic.topic_id.0, now_ms], |row| {
        Ok(TopicContents {
            messages,
            scheduled: decode::count(row, 0)?,
            groups: decode::count(row, 1)?,
            leases: decode::count(row, 2)?,
            dead_letters: decode::count(row, 3)?,
            served: Vec::new(),
        })
    })?;
    contents.served = served(connection, &topic, now_ms)?;
    Ok(contents)
}

/// The groups that processes serve, and by how many.
pub(super) fn served(connection: &Connection, topic: &Topic, now_ms: i64) -> Attempt<Vec<(GroupName, u32)>> {
    let living_from_ms = now_ms.saturating_sub(millis(topic.settings.heartbeat_timeout));
    let mut statement = connection.prepare_cached(sql!(topic.served))?;
    Ok(decode::all(&mut statement, params![topic.topic_id.0, living_from_ms], |row| {
        Ok((decode::parsed(row, 0, |name| GroupName::new(name))?, row.get(1)?))
    })?)
}

/// Deletes a topic and its subscriptions; leases are lost. Messages and other rows that may be many stay, without an
/// owner, until [`remove_some`] has deleted them.
pub(in crate::store::sqlite) fn delete(
    work: &mut Work<'_>,
    name: &TopicName,
    removal: Removal,
    counted: &TopicContents,
    actor: &str,
) -> Attempt<()> {
    let topic = get(work.connection, name)?;
    removal.check("delete", name.as_str(), &served(work.connection, &topic, work.now_ms())?)?;
    let connection = work.connection;
    let subscriptions: Vec<i32> = {
        let mut statement = connection.prepare_cached(sql!(topic.subscriptions))?;
        decode::all(&mut statement, [topic.topic_id.0], |row| row.get(0))?
    };
    wake(work, topic.topic_id)?;
    for subscription_id in &subscriptions {
        connection.prepare_cached(sql!(state.forget_ranges))?.execute([subscription_id])?;
        tracking::forget_subscription(connection, *subscription_id)?;
        state::delete_row(connection, *subscription_id)?;
    }
    connection
        .prepare_cached(sql!(topic.deleted_note))?
        .execute(params![topic.topic_id.0, Value::from(subscriptions).to_string()])?;
    connection.prepare_cached(sql!(topic.delete))?.execute([topic.topic_id.0])?;
    let detail = json!({
        "messages": counted.messages,
        "scheduled": counted.scheduled,
        "groups": counted.groups,
        "dead_letters": counted.dead_letters,
        "leases_lost": counted.leases,
    });
    audit::note(work, actor, "delete_topic", Some(name.as_str()), None, &detail)
}

/// Removes rows of a deleted topic, up to the limit of a step; true if there may be more. A step that a crash undoes is
/// repeated.
pub(in crate::store::sqlite) fn remove_some(work: &mut Work<'_>) -> Attempt<bool> {
    let connection = work.connection;
    let found = connection
        .prepare_cached(sql!(topic.deleted))?
        .query_row([], |row| Ok((TopicId(row.get(0)?), decode::json::<Vec<i32>>(row, 1)?)))
        .optional()?;
    let Some((topic, subscriptions)) = found else { return Ok(false) };
    for subscription_id in subscriptions {
        if state::remove_some_dead_letters(connection, subscription_id)? {
            return Ok(true);
        }
    }
    let stored = log::page(connection, topic, 0, OFFSET_MAX, ROWS_PER_STEP)?;
    if let (Some(first), Some(last)) = (stored.first(), stored.last()) {
        log::remove(connection, topic, *first, *last)?;
        return Ok(true);
    }
    if tracking::forget_some_records(connection, topic, ROWS_PER_STEP)? {
        return Ok(true);
    }
    let some = connection.prepare_cached(sql!(topic.some_scheduled))?;
    let page = Page::load(some, params![topic.0, ROWS_PER_STEP])?;
    if page.remove(connection.prepare_cached(sql!(maintenance.promote_remove))?)? > 0 {
        return Ok(true);
    }
    for sql in [
        sql!(topic.remove_dedup),
        sql!(topic.remove_acks),
        sql!(topic.remove_watermarks),
        sql!(topic.remove_ages),
    ] {
        if connection.prepare_cached(sql)?.execute(params![topic.0, ROWS_PER_STEP])? > 0 {
            return Ok(true);
        }
    }
    connection.prepare_cached(sql!(topic.deleted_end))?.execute([topic.0])?;
    Ok(true)
}
