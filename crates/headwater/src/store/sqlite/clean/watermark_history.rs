//! The watermark history: message retention is measured from the time at which messages were done.

use rusqlite::{Connection, OptionalExtension, params};

use crate::store::sqlite::decode;
use crate::store::sqlite::fault::Attempt;
use crate::store::sqlite::progress::TopicRange;
use crate::topic::TopicId;

/// About how many entries are kept per topic: the rise of the watermark is recorded this often within the retention.
const ENTRIES_PER_RETENTION: i64 = 1_000;

/// Records the watermark, if it moved, and removes entries that are superseded.
pub(super) fn write(
    connection: &Connection,
    topic_range: &TopicRange,
    watermark: i64,
    now_ms: i64,
) -> Attempt<()> {
    if let Some(retention_ms) = topic_range.message_retention_ms {
        let fell_to = forget_ahead(connection, topic_range.topic, now_ms)?;
        let newest: Option<(i64, i64)> = connection
            .prepare_cached(sql!(clean.watermark_newest))?
            .query_row([topic_range.topic.0], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let (noted_at_ms, marked) = newest.unwrap_or((i64::MIN, 0));
        // A fall that was recorded by a clock that was ahead is recorded again: its real time is unknown, and now is
        // late enough.
        let watermark = fell_to.filter(|lowest| *lowest < marked).map_or(watermark, |low| low.min(watermark));
        let thinned = now_ms.saturating_sub(noted_at_ms) < retention_ms / ENTRIES_PER_RETENTION;
        // A fall is recorded at once: messages that have to be done again are done later than they were.
        if watermark < marked || (watermark > marked && !thinned) {
            connection.prepare_cached(sql!(clean.watermark_note))?.execute(params![
                topic_range.topic.0,
                now_ms,
                watermark
            ])?;
        }
    }
    prune(connection, topic_range, now_ms).map(drop)
}

/// Removes entries from the future: a clock that was ahead wrote them, and until that time no entry would be newer.
/// Returns the lowest watermark among them.
fn forget_ahead(connection: &Connection, topic: TopicId, now_ms: i64) -> Attempt<Option<i64>> {
    let mut statement = connection.prepare_cached(sql!(clean.watermark_ahead))?;
    let watermarks: Vec<i64> = decode::all(&mut statement, params![topic.0, now_ms], |row| row.get(0))?;
    Ok(watermarks.into_iter().min())
}

/// What has been done ever since a time; 0 if nothing was recorded by then. A watermark that fell and rose again
/// counts from its fall: a group that comes late is done late, and retention is measured from the last group that is
/// done.
pub(in crate::store::sqlite) fn since(
    connection: &Connection,
    topic: TopicId,
    since_ms: i64,
) -> Attempt<i64> {
    let mut statement = connection.prepare_cached(sql!(clean.watermark_since))?;
    let lowest: Option<i64> = statement.query_row(params![topic.0, since_ms], |row| row.get(0))?;
    Ok(lowest.unwrap_or(0))
}

/// Removes entries older than the newest one that is old enough, or all where messages are kept forever.
pub(super) fn prune(connection: &Connection, topic_range: &TopicRange, now_ms: i64) -> Attempt<u64> {
    let until_ms = topic_range.message_retention_ms.map(|retention_ms| now_ms.saturating_sub(retention_ms));
    let mut statement = connection.prepare_cached(sql!(clean.watermark_prune))?;
    Ok(statement.execute(params![topic_range.topic.0, until_ms])? as u64)
}
