//! Maintains completion records: see `schema/functions/tracking/step.sql`.

use crate::error::Result;
use crate::store::TrackStep;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::advance_heads::{advance, batch};
use crate::store::postgres::time::{count, stored};
use crate::topic::TopicId;

pub(super) async fn track(store: &PostgresStore, topic: TopicId, messages_max: u32) -> Result<TrackStep> {
    advance(store, topic).await?;
    let rows = store
        .connections
        .query(
            &format!("tracking topic {topic}"),
            &store.statements.tracking_step,
            &[&topic.0, &batch(messages_max), &store.clock.injected()],
        )
        .await?;
    let row = &rows[0];
    Ok(TrackStep {
        recorded: count(row, "recorded")?,
        changed: count(row, "changed")?,
        completed: count(row, "completed")?,
        released: count(row, "released")?,
        removed: count(row, "removed")?,
        more: stored(row, "more")?,
    })
}
