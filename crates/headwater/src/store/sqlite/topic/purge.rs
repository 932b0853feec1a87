//! Purging a topic: every group is moved past the last message in one transaction, and the messages are removed
//! afterwards, in steps.

use rusqlite::params;
use serde_json::json;

use super::delete::served;
use super::get;
use crate::name::TopicName;
use crate::store::sqlite::fault::Attempt;
use crate::store::sqlite::progress::{SubscriptionProgress, TopicRange};
use crate::store::sqlite::ranges::Ranges;
use crate::store::sqlite::work::{Work, wake};
use crate::store::sqlite::{audit, clean, group, log, tracking};
use crate::topic::{Removal, TopicContents, TopicId};

/// Messages that one step removes at most, and fewer if their payloads are large.
const MESSAGES_PER_STEP: u32 = 1_000;

/// The messages to remove: of a topic, from an offset to another.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::sqlite) struct Purge {
    topic: TopicId,
    from: i64,
    until: i64,
}

/// Moves every group past the last message: leases are lost, retries are dropped, and nothing counts as missed.
pub(in crate::store::sqlite) fn begin(
    work: &mut Work<'_>,
    name: &TopicName,
    removal: Removal,
    counted: &TopicContents,
    actor: &str,
) -> Attempt<Purge> {
    let topic = get(work.connection, name)?;
    removal.check("purge", name.as_str(), &served(work.connection, &topic, work.now_ms())?)?;
    let (connection, topic) = (work.connection, topic.topic_id);
    let TopicRange { first, head, .. } = TopicRange::load(connection, topic)?;
    let all_progress = SubscriptionProgress::all(connection, topic)?;
    let mut leases_lost = 0;
    for SubscriptionProgress { subscription_id, .. } in &all_progress {
        leases_lost += group::leases(connection, *subscription_id, work.now_ms())?;
        connection.prepare_cached(sql!(state.forget_ranges))?.execute([subscription_id])?;
        connection.prepare_cached(sql!(seek.cursor))?.execute(params![subscription_id, head + 1])?;
        connection.prepare_cached(sql!(seek.subscription))?.execute([subscription_id])?;
        tracking::cursor_moved(connection, *subscription_id, head + 1)?;
    }
    let detail = json!({
        "until": head,
        "messages": counted.messages,
        "groups": all_progress.len(),
        "leases_lost": leases_lost,
    });
    audit::note(work, actor, "purge_topic", Some(name.as_str()), None, &detail)?;
    wake(work, topic)?;
    Ok(Purge { topic, from: first, until: head })
}

/// Removes some of the messages; returns where the next step begins, `None` at the end. A message that a group has to do
/// again, because an operator moved it back or redrove a dead letter meanwhile, stays.
pub(in crate::store::sqlite) fn remove_some(work: &mut Work<'_>, purge: Purge) -> Attempt<Option<Purge>> {
    let Purge { topic, from, until } = purge;
    let connection = work.connection;
    let Some(topic_range) = TopicRange::find(connection, topic)? else { return Ok(None) };
    let stored = log::page(connection, topic, from, until, MESSAGES_PER_STEP)?;
    let Some((first, last)) = stored.first().copied().zip(stored.last().copied()) else {
        return Ok(None);
    };
    let mut going = Ranges::covering(stored.into_iter().map(|offset| (offset, offset)));
    for progress in SubscriptionProgress::all(connection, topic)? {
        going = going.without(&progress.pending(connection, first, last)?);
    }
    let removed = clean::remove(connection, &topic_range, &going)?;
    clean::raise_first(connection, &topic_range, removed)?;
    clean::forget_acks(connection, topic, MESSAGES_PER_STEP)?;
    Ok(Some(Purge { from: last + 1, ..purge }))
}
