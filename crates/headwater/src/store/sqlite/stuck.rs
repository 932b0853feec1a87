//! What is not done and old: shown for groups that count, given up for dead ones.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::fault::Attempt;
use super::range::DUE_NEVER;
use super::work::Work;
use super::{audit, decode, group, millis, pending, resurrect, row_key, settle, subscribe, topic};
use crate::message::Offset;
use crate::name::TopicName;
use crate::store::{ForceCompleted, Stuck};
use crate::topic::TopicId;

/// What each counting group has not done although it was published longer ago.
pub(super) fn stuck(
    connection: &Connection,
    name: &TopicName,
    older_than: Duration,
    now_ms: i64,
) -> Attempt<Vec<Stuck>> {
    let topic = topic::get(connection, name)?.topic_id;
    let until = last_older(connection, topic, older_than, now_ms)?;
    let mut all = Vec::new();
    for (subscription_id, group) in group::listed(connection, super::sql!("stuck/counting.sql"), topic)? {
        let pending = pending::pending(connection, subscription_id, until)?;
        let found = pending::stored(connection, topic, &pending)?;
        let Some((first, _)) = found.range else { continue };
        if let Some(oldest) = published_at(connection, topic, first)? {
            all.push(Stuck { group, messages: found.messages, oldest });
        }
    }
    Ok(all)
}

/// The last offset published longer ago than that; 0 or less if there is none.
fn last_older(connection: &Connection, topic: TopicId, older_than: Duration, now_ms: i64) -> Attempt<i64> {
    let before = Timestamp::from_millisecond(now_ms.saturating_sub(millis(older_than)));
    let first_younger = subscribe::start_at(connection, topic, before.unwrap_or(Timestamp::MIN))?;
    Ok(first_younger - 1)
}

fn published_at(connection: &Connection, topic: TopicId, offset: i64) -> Attempt<Option<Timestamp>> {
    let key = row_key(topic, offset);
    let mut statement = connection.prepare_cached(super::sql!("subscribe/time_at.sql"))?;
    Ok(statement.query_row([key, key], |row| decode::timestamp(row, 1)).optional()?)
}

/// What would be given up for one dead subscription.
#[derive(Clone, Debug)]
pub(super) struct GivenUp {
    subscription_id: i32,
    range: (i64, i64),
    /// What is told of it.
    pub(super) told: ForceCompleted,
}

/// Works out what only dead subscriptions have not done: what is at or below the watermark, and old enough.
pub(super) fn plan(
    connection: &Connection,
    name: &TopicName,
    older_than: Duration,
    now_ms: i64,
) -> Attempt<(TopicId, Vec<GivenUp>)> {
    let topic = topic::get(connection, name)?.topic_id;
    let until = last_older(connection, topic, older_than, now_ms)?.min(watermark(connection, topic, now_ms)?);
    let mut all = Vec::new();
    for (subscription_id, group) in group::listed(connection, super::sql!("force_complete/dead.sql"), topic)?
    {
        let pending = pending::pending(connection, subscription_id, until)?;
        let found = pending::stored(connection, topic, &pending)?;
        let Some(range) = found.range else { continue };
        let told = ForceCompleted { group, messages: found.messages, until: Offset(until) };
        all.push(GivenUp { subscription_id, range, told });
    }
    Ok((topic, all))
}

/// Everything at or below it is done for every subscription that counts; the head without any.
fn watermark(connection: &Connection, topic: TopicId, now_ms: i64) -> Attempt<i64> {
    let (_, _, mut watermark) = subscribe::bounds(connection, topic)?;
    for (subscription_id, _) in group::listed(connection, super::sql!("stuck/counting.sql"), topic)? {
        watermark = watermark.min(group::place(connection, subscription_id, now_ms)?.floor);
    }
    Ok(watermark)
}

/// Gives it up: the cursors move past it, and it is counted as missed.
pub(super) fn force_complete(
    work: &mut Work<'_>,
    name: &TopicName,
    older_than: Duration,
    actor: &str,
) -> Attempt<Vec<ForceCompleted>> {
    let (topic, given_up) = plan(work.connection, name, older_than, work.now_ms())?;
    let mut groups = serde_json::Map::new();
    for GivenUp { subscription_id, range, told } in &given_up {
        let from = told.until.0 + 1;
        resurrect::leave_behind(work, *subscription_id, from, DUE_NEVER)?;
        let connection = work.connection;
        connection
            .prepare_cached(super::sql!("resurrect/cut_below.sql"))?
            .execute(params![subscription_id, from])?;
        let messages = i64::try_from(told.messages).unwrap_or(i64::MAX);
        connection.prepare_cached(super::sql!("force_complete/missed.sql"))?.execute(params![
            subscription_id,
            messages,
            range.0,
            range.1
        ])?;
        groups.insert(told.group.as_str().to_owned(), told.messages.into());
    }
    let detail = serde_json::json!({ "older_than_ms": millis(older_than), "given_up": groups });
    audit::note(work, actor, "force_complete", Some(name.as_str()), None, &detail)?;
    settle::stir(work, topic)?;
    Ok(given_up.into_iter().map(|given_up| given_up.told).collect())
}
