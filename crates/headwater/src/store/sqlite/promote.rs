//! Promote: scheduled messages enter the log when they are due.

use rusqlite::params;

use super::fault::{Attempt, Fault};
use super::work::Work;
use super::{decode, log};
use crate::limits::PROMOTE_MESSAGES_MAX;
use crate::topic::TopicId;

/// Moves due messages of a topic into its log: a bounded number, and as many bytes of payloads as the transaction has
/// left. Returns the new head and the number of messages. What is left is due, so a claim is repeated at once for it.
///
/// An offset once seen by a consumer must not be assigned to another message after a power cut: so this happens only
/// in a transaction that waits for the disk; in any other it returns [`Fault::NeedsSync`].
pub(super) fn promote(
    work: &mut Work<'_>,
    topic: TopicId,
    last_offset: i64,
    now_ms: i64,
) -> Attempt<(i64, u64)> {
    if !work.synced {
        return Err(Fault::NeedsSync);
    }
    let connection = work.connection;
    let due = due(work, topic, now_ms)?;
    let mut head = last_offset;
    let mut remove = connection.prepare_cached(super::sql!(maintenance.promote_remove))?;
    let mut dedup = connection.prepare_cached(super::sql!(maintenance.promote_dedup))?;
    for (schedule_id, message_id, dedup_key) in &due {
        head += 1;
        log::append_scheduled(connection, topic, head, *schedule_id, now_ms)?;
        remove.execute([schedule_id])?;
        if let Some(dedup_key) = dedup_key {
            dedup.execute(params![topic.0, dedup_key, message_id, head])?;
        }
    }
    if !due.is_empty() {
        connection.prepare_cached(super::sql!(publish.head))?.execute(params![topic.0, head, 0])?;
        work.wake(topic);
    }
    Ok((head, due.len() as u64))
}

type Due = (i64, Vec<u8>, Option<String>);

fn due(work: &mut Work<'_>, topic: TopicId, now_ms: i64) -> Attempt<Vec<Due>> {
    let connection = work.connection;
    let mut statement = connection.prepare_cached(super::sql!(maintenance.promote_due))?;
    let mut rows = statement.query(params![topic.0, now_ms, PROMOTE_MESSAGES_MAX])?;
    let mut due = Vec::new();
    while let Some(row) = rows.next()? {
        // In order: a smaller message behind one that does not fit must not overtake it.
        if !work.promoted.take(decode::count(row, 3)?) {
            break;
        }
        due.push((row.get(0)?, row.get(1)?, row.get(2)?));
    }
    Ok(due)
}
