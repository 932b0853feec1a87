//! Scheduled messages: list, cancel, move. The argument why none is both cancelled and delivered is in
//! `schema/functions/schedule.sql`.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::log::headers_of;
use super::time::{count, holdable, millis, stored};
use super::{PostgresStore, topic};
use crate::error::Result;
use crate::name::TopicName;
use crate::scheduled::{Reschedule, Scheduled, ScheduledPlace};
use crate::topic::TopicId;

pub(super) async fn list(
    store: &PostgresStore,
    name: &TopicName,
    after: Option<ScheduledPlace>,
    limit: u32,
) -> Result<Vec<Scheduled>> {
    let topic_id = topic::get(store, name).await?.topic_id;
    let doing = format!("listing the scheduled messages of topic {name}");
    let (at, number) = (after.map(|place| place.deliver_at), after.map(|place| place.number));
    let params: [&(dyn ToSql + Sync); 4] = [&topic_id.0, &i64::from(limit), &at, &number];
    let rows = store.connections.query(&doing, &store.statements.schedule_list, &params).await?;
    rows.iter().map(scheduled_of).collect()
}

fn scheduled_of(row: &Row) -> Result<Scheduled> {
    Ok(Scheduled {
        deliver_at: stored(row, "deliver_at")?,
        message_id: stored(row, "message_id")?,
        key: stored(row, "key")?,
        message_type: stored(row, "message_type")?,
        content_type: stored(row, "content_type")?,
        headers: headers_of(stored(row, "headers")?)?,
        correlation_id: stored(row, "correlation_id")?,
        dedup_key: stored(row, "dedup_key")?,
        payload_bytes: count(row, "payload_bytes")?,
        number: stored(row, "schedule_id")?,
    })
}

pub(super) async fn cancel(store: &PostgresStore, name: &TopicName, message_id: Uuid) -> Result<bool> {
    let doing = format!("cancelling message {message_id} of topic {name}");
    let params: [&(dyn ToSql + Sync); 4] =
        [&name.as_str(), &message_id, &&*store.actor.now(), &store.clock.injected()];
    let rows = store.connections.query(&doing, &store.statements.schedule_cancel, &params).await?;
    stored(&rows[0], "cancelled")
}

pub(super) async fn reschedule(
    store: &PostgresStore,
    name: &TopicName,
    message_id: Uuid,
    to: Reschedule,
) -> Result<bool> {
    let doing = format!("rescheduling message {message_id} of topic {name}");
    let (at, delay_ms) = match to {
        Reschedule::At(at) => (Some(holdable(at)), None),
        Reschedule::After(delay) => (None, Some(millis(delay))),
    };
    let params: [&(dyn ToSql + Sync); 6] =
        [&name.as_str(), &message_id, &at, &delay_ms, &&*store.actor.now(), &store.clock.injected()];
    let rows = store.connections.query(&doing, &store.statements.schedule_move, &params).await?;
    let topic: Option<i32> = stored(&rows[0], "topic_id")?;
    topic.iter().for_each(|topic| store.hub.wake(TopicId(*topic)));
    Ok(topic.is_some())
}
