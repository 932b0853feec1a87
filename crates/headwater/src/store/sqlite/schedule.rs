//! Scheduled messages: list, cancel, move. One transaction writes at a time: a message is promoted before one of these, which
//! then does not find it, or after it.

use rusqlite::{Connection, params};
use serde_json::json;
use uuid::Uuid;

use super::fault::Attempt;
use super::work::Work;
use super::{audit, decode, millis, topic};
use crate::error::Error;
use crate::limits::DELAY_MAX;
use crate::name::TopicName;
use crate::scheduled::{Reschedule, Scheduled, ScheduledPlace};

/// The scheduled messages of a topic, by their time.
pub(super) fn list(
    connection: &Connection,
    name: &TopicName,
    after: Option<ScheduledPlace>,
    limit: u32,
) -> Attempt<Vec<Scheduled>> {
    let topic_id = topic::get(connection, name)?.topic_id;
    let (after_ms, number) =
        after.map_or((i64::MIN, 0), |place| (place.deliver_at.as_millisecond(), place.number));
    let mut statement = connection.prepare_cached(super::sql!(schedule.list))?;
    Ok(decode::all(&mut statement, params![topic_id.0, limit, after_ms, number], |row| {
        Ok(Scheduled {
            deliver_at: decode::timestamp(row, 0)?,
            message_id: decode::uuid(row, 1)?,
            key: decode::text(row, 2)?,
            message_type: decode::text(row, 3)?,
            content_type: decode::text(row, 4)?,
            headers: decode::headers(row, 5)?,
            correlation_id: decode::text(row, 6)?,
            dedup_key: decode::text(row, 7)?,
            payload_bytes: decode::count(row, 8)?,
            number: row.get(9)?,
        })
    })?)
}

/// Cancels the messages of this id, with an audit entry; false if there is none.
pub(super) fn cancel(work: &mut Work<'_>, name: &TopicName, message_id: Uuid, actor: &str) -> Attempt<bool> {
    let (connection, id) = (work.connection, message_id.as_bytes().as_slice());
    let topic_id = topic::get(connection, name)?.topic_id;
    let mut statement = connection.prepare_cached(super::sql!(schedule.cancel))?;
    let cancelled: Vec<(i64, Option<String>)> =
        decode::all(&mut statement, params![topic_id.0, id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let Some(deliver_at_ms) = cancelled.iter().map(|(at_ms, _)| *at_ms).min() else { return Ok(false) };
    for dedup_key in cancelled.iter().filter_map(|(_, dedup_key)| dedup_key.as_deref()) {
        let mut forget = connection.prepare_cached(super::sql!(schedule.forget_dedup))?;
        forget.execute(params![topic_id.0, dedup_key, id])?;
    }
    let detail = json!({ "message_id": message_id, "deliver_at_ms": deliver_at_ms });
    audit::note(work, actor, "cancel_scheduled", Some(name.as_str()), None, &detail)?;
    Ok(true)
}

/// Moves the messages of this id, with an audit entry; false if there is none.
pub(super) fn reschedule(
    work: &mut Work<'_>,
    name: &TopicName,
    message_id: Uuid,
    to: Reschedule,
    actor: &str,
) -> Attempt<bool> {
    let (connection, id, now_ms) = (work.connection, message_id.as_bytes().as_slice(), work.now_ms());
    let to_ms = match to {
        Reschedule::At(at) => at.as_millisecond(),
        Reschedule::After(delay) => now_ms.saturating_add(millis(delay)),
    };
    if to_ms > now_ms.saturating_add(millis(DELAY_MAX)) {
        return Err(Error::invalid("deliver_at", "more than 366 days from now").into());
    }
    let topic_id = topic::get(connection, name)?.topic_id;
    let mut time = connection.prepare_cached(super::sql!(schedule.time))?;
    let from_ms: Option<i64> = time.query_row(params![topic_id.0, id], |row| row.get(0))?;
    let Some(from_ms) = from_ms else { return Ok(false) };
    connection.prepare_cached(super::sql!(schedule.reschedule))?.execute(params![topic_id.0, id, to_ms])?;
    connection.prepare_cached(super::sql!(schedule.wake))?.execute([topic_id.0])?;
    work.wake(topic_id);
    let detail = json!({ "message_id": message_id, "from_ms": from_ms, "to_ms": to_ms });
    audit::note(work, actor, "reschedule", Some(name.as_str()), None, &detail)?;
    Ok(true)
}
