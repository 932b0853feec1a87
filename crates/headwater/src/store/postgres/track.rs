//! Keeping the records of reference counting: see `schema/functions/track.sql`.

use super::PostgresStore;
use super::time::{count, stored};
use crate::error::Result;
use crate::limits::{ADVANCE_ROWS_MAX, GAPS_NOTED_MAX};
use crate::store::TrackStep;
use crate::topic::TopicId;

pub(super) async fn track(store: &PostgresStore, topic: TopicId, messages_max: u32) -> Result<TrackStep> {
    advance(store, topic).await?;
    let rows = store
        .connections
        .query(
            &format!("tracking topic {topic}"),
            &store.statements.track,
            &[&topic.0, &batch(messages_max), &store.clock.injected()],
        )
        .await?;
    let row = &rows[0];
    Ok(TrackStep {
        recorded: count(row, "recorded")?,
        changed: count(row, "changed")?,
        completed: count(row, "completed")?,
        removed: count(row, "removed")?,
        more: stored(row, "more")?,
    })
}

/// Upkeep goes up to the head, which moves when somebody looks. In a transaction of its own: nothing of upkeep may keep
/// the head locked.
pub(super) async fn advance(store: &PostgresStore, topic: TopicId) -> Result<()> {
    let bounds: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&topic.0, &ADVANCE_ROWS_MAX, &GAPS_NOTED_MAX];
    store.connections.query("advancing the head", &store.statements.advance, &bounds).await.map(drop)
}

/// A number of messages as the functions take it.
pub(super) fn batch(messages_max: u32) -> i32 {
    i32::try_from(messages_max).unwrap_or(i32::MAX)
}
