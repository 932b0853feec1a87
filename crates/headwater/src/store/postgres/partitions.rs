//! Partitions of dedicated topics: see `schema/functions/log/partitions.sql`.

use super::PostgresStore;
use super::advance_heads::advance;
use super::clean::{elapse, missed_of};
use super::time::{count, stored};
use crate::error::Result;
use crate::store::PartitionStep;
use crate::topic::TopicId;

/// How long a lock is waited for. Publishes to the topic queue behind it for as long.
const LOCK_MS: i32 = 100;

pub(super) async fn keep_partitions(store: &PostgresStore, topic: TopicId) -> Result<PartitionStep> {
    advance(store, topic).await?;
    elapse(store).await?;
    let rows = store
        .connections
        .query(
            &format!("keeping the partitions of topic {topic}"),
            &store.statements.clean_partitions,
            &[&topic.0, &LOCK_MS, &store.clock.injected()],
        )
        .await?;
    let row = &rows[0];
    Ok(PartitionStep {
        created: count(row, "created")?,
        dropped: count(row, "dropped")?,
        removed: count(row, "removed")?,
        missed: missed_of(row)?,
        ahead: count(row, "ahead")?,
        locked: stored(row, "locked")?,
    })
}
