//! Advance heads: one bounded round over all topics.

use rusqlite::params;

use super::decode;
use super::fault::Attempt;
use super::promote::promote;
use super::work::Work;
use crate::store::Maintained;
use crate::topic::TopicId;

/// Dedup keys removed in one round at most: the writer is shared.
const FORGET_MAX: u32 = 10_000;

/// Promotes due messages of every topic and removes old dedup keys.
pub(super) fn advance_heads(work: &mut Work<'_>) -> Attempt<Maintained> {
    let now_ms = work.now_ms();
    let mut done = Maintained::default();
    for (topic, last_offset) in due(work, now_ms)? {
        done.promoted += promote(work, topic, last_offset, now_ms)?.1;
    }
    // Other commands of this transaction may have taken its room for promoted bytes: then there is more though nothing was promoted.
    done.more = (done.promoted > 0 || work.promoted.is_used()) && !due(work, now_ms)?.is_empty();
    let mut forget = work.connection.prepare_cached(super::sql!(maintenance.forget_dedup))?;
    done.dedup_forgotten = forget.execute(params![now_ms, FORGET_MAX])? as u64;
    Ok(done)
}

/// The topics with messages that are due, each with its last offset; the one with the longest overdue message first.
fn due(work: &Work<'_>, now_ms: i64) -> Attempt<Vec<(TopicId, i64)>> {
    let mut statement = work.connection.prepare_cached(super::sql!(maintenance.promote_topics))?;
    Ok(decode::all(&mut statement, [now_ms], |row| Ok((TopicId(row.get(0)?), row.get(1)?)))?)
}
