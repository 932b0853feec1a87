//! Seek: an operator moves a subscription's cursor.

use rusqlite::{Connection, params};

use super::fault::Attempt;
use super::progress::{SubscriptionProgress, TopicRange};
use super::work::{Work, wake};
use super::{audit, group, log, subscribe, tracking};
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::store::Moved;
use crate::store::sqlite::ranges::Ranges;
use crate::subscription::Start;
use crate::topic::TopicId;

/// A planned move, without the number of affected messages.
struct Plan {
    subscription_id: i32,
    topic: TopicId,
    first: i64,
    head: i64,
    progress: SubscriptionProgress,
    moved: Moved,
}

fn plan(
    connection: &Connection,
    name: &TopicName,
    group: &GroupName,
    to: Start,
    now_ms: i64,
) -> Attempt<Plan> {
    let (topic, found) = group::get_alive(connection, name, group, "seek")?;
    let (subscription_id, topic) = (found.subscription_id, topic.topic_id);
    let TopicRange { first, head, .. } = TopicRange::load(connection, topic)?;
    let to = subscribe::start_offset(connection, topic, to)?;
    let (_, progress) = SubscriptionProgress::one(connection, subscription_id)?;
    let leases_lost = group::leases(connection, subscription_id, now_ms)?;
    let moved = Moved { from: Offset(progress.next), to: Offset(to), replayed: 0, skipped: 0, leases_lost };
    Ok(Plan { subscription_id, topic, first, head, progress, moved })
}

/// Computes the effect of a move without making it. Counts messages, so it runs on a reader.
pub(super) fn read_plan(
    connection: &Connection,
    name: &TopicName,
    group: &GroupName,
    to: Start,
    now_ms: i64,
) -> Attempt<Moved> {
    let Plan { topic, first, head, progress, moved, .. } = plan(connection, name, group, to, now_ms)?;
    let to = moved.to.0;
    let pending = progress.pending(connection, first, head)?;
    let again = Ranges::of(to.max(first), head).without(&pending);
    let never = pending.within(first, to.saturating_sub(1));
    Ok(Moved {
        replayed: log::count(connection, topic, &again)?.messages,
        skipped: log::count(connection, topic, &never)?.messages,
        ..moved
    })
}

/// Moves the cursor. The topic's waiters are woken: there may be messages for them.
///
/// How many messages are replayed or skipped was counted just before, by [`read_plan`]: messages that were published or
/// settled in between are moved over like the rest, but are not in these counts.
pub(super) fn seek(
    work: &mut Work<'_>,
    name: &TopicName,
    group: &GroupName,
    to: Start,
    counted: &Moved,
    actor: &str,
) -> Attempt<Moved> {
    let Plan { subscription_id, topic, moved, .. } = plan(work.connection, name, group, to, work.now_ms())?;
    let moved = Moved { replayed: counted.replayed, skipped: counted.skipped, ..moved };
    let connection = work.connection;
    connection.prepare_cached(super::sql!(state.forget_ranges))?.execute([subscription_id])?;
    connection.prepare_cached(super::sql!(seek.cursor))?.execute(params![subscription_id, moved.to.0])?;
    connection.prepare_cached(super::sql!(seek.subscription))?.execute([subscription_id])?;
    tracking::cursor_moved(connection, subscription_id, moved.to.0)?;
    let detail = serde_json::json!({
        "from": moved.from.0,
        "to": moved.to.0,
        "replayed": moved.replayed,
        "skipped": moved.skipped,
        "leases_lost": moved.leases_lost,
    });
    audit::note(work, actor, "seek", Some(name.as_str()), Some(group.as_str()), &detail)?;
    wake(work, topic)?;
    Ok(moved)
}
