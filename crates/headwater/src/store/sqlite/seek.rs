//! Seek: a subscription's cursor is moved by hand.

use rusqlite::{Connection, params};

use super::fault::Attempt;
use super::work::Work;
use super::{audit, group, pending, settle, subscribe};
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::store::Moved;
use crate::subscription::Start;
use crate::topic::TopicId;

/// A move that is worked out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    subscription_id: i32,
    topic: TopicId,
    pub(super) moved: Moved,
}

/// Works out what a move does, without doing it.
pub(super) fn plan(
    connection: &Connection,
    name: &TopicName,
    group: &GroupName,
    to: Start,
    now_ms: i64,
) -> Attempt<Plan> {
    let (topic, found) = group::get_alive(connection, name, group, "seek")?;
    let (subscription_id, topic) = (found.subscription_id, topic.topic_id);
    let (first, _, head) = subscribe::bounds(connection, topic)?;
    let to = subscribe::start_offset(connection, topic, to)?;
    let pending = pending::pending(connection, subscription_id, head)?;
    let again = pending::outside(&pending, to.max(first), head);
    let never = pending::clipped(&pending, first, to - 1);
    let leases_lost = connection
        .prepare_cached(super::sql!("seek/leases.sql"))?
        .query_row(params![subscription_id, now_ms], |row| super::decode::count(row, 0))?;
    let moved = Moved {
        from: Offset(group::place(connection, subscription_id, now_ms)?.next),
        to: Offset(to),
        replayed: pending::stored(connection, topic, &again)?.messages,
        skipped: pending::stored(connection, topic, &never)?.messages,
        leases_lost,
    };
    Ok(Plan { subscription_id, topic, moved })
}

/// Moves the cursor. Those who wait for the topic are woken: there may be something for them.
pub(super) fn seek(
    work: &mut Work<'_>,
    name: &TopicName,
    group: &GroupName,
    to: Start,
    actor: &str,
) -> Attempt<Moved> {
    let Plan { subscription_id, topic, moved } = plan(work.connection, name, group, to, work.now_ms())?;
    let connection = work.connection;
    connection.prepare_cached(super::sql!("shift/forget_ranges.sql"))?.execute([subscription_id])?;
    connection
        .prepare_cached(super::sql!("seek/cursor.sql"))?
        .execute(params![subscription_id, moved.to.0])?;
    connection
        .prepare_cached(super::sql!("seek/subscription.sql"))?
        .execute(params![subscription_id, moved.to.0])?;
    let detail = serde_json::json!({
        "from": moved.from.0,
        "to": moved.to.0,
        "replayed": moved.replayed,
        "skipped": moved.skipped,
        "leases_lost": moved.leases_lost,
    });
    audit::note(work, actor, "seek", Some(name.as_str()), Some(group.as_str()), &detail)?;
    settle::stir(work, topic)?;
    Ok(moved)
}
