//! Advance heads: one round over all topics.

use super::PostgresStore;
use super::clock::{self, On};
use super::time::{count, stored};
use super::vacuum::vacuum;
use crate::error::Result;
use crate::limits::{ADVANCE_ROWS_MAX, GAPS_NOTED_MAX};
use crate::store::Maintained;
use crate::topic::TopicId;

/// Topics whose heads are read in one transaction.
const TOPICS_PER_STEP: usize = 500;

pub(super) async fn advance_heads(store: &PostgresStore) -> Result<Maintained> {
    // A step of the clock must be corrected before dedup keys expire by it.
    clock::check(store, On::Work).await?;
    // In transactions of their own: heads must not stay locked while the rest waits for other locks.
    let (late, gaps_closed) = advance_all(store).await?;
    let rest = store
        .connections
        .query(
            "maintaining",
            &store.statements.maintenance_round,
            &[&store.promotion.messages_max(), &store.clock.injected()],
        )
        .await;
    store.promotion.note(&rest);
    let rest = rest?;
    store.promotion.ended();
    let done = Maintained {
        promoted: count(&rest[0], "promoted")?,
        late,
        gaps_closed,
        dedup_forgotten: count(&rest[0], "dedup_forgotten")?,
        more: stored(&rest[0], "more")?,
    };
    // Small tables in which every batch replaces rows: claims are fast as long as the tables stay small.
    vacuum(store, &["outstanding", "cursor", "head", "gap"], 10_000).await;
    if done.promoted + done.late > 0 {
        store.hub.wake_all();
    }
    Ok(done)
}

/// Advances the heads that have something to do, each in a transaction of its own: a slow one does not delay the others.
/// Returns how many late messages were found and how many gaps were closed.
async fn advance_all(store: &PostgresStore) -> Result<(u64, u64)> {
    let (mut late, mut closed, mut above) = (0, 0, 0_i32);
    let per_step = i64::try_from(TOPICS_PER_STEP).expect("a small number");
    loop {
        let topics = store
            .connections
            .query("reading heads", &store.statements.maintenance_behind, &[&above, &per_step])
            .await?;
        let Some(last) = topics.last() else { return Ok((late, closed)) };
        above = last.get("topic_id");
        for topic in topics.iter().filter(|row| row.get("news")) {
            let rows = store
                .connections
                .query(
                    "advancing a head",
                    &store.statements.maintenance_advance,
                    &[&topic.get::<_, i32>("topic_id"), &ADVANCE_ROWS_MAX, &GAPS_NOTED_MAX],
                )
                .await?;
            late += count(&rows[0], "late")?;
            closed += count(&rows[0], "closed")?;
        }
        if topics.len() < TOPICS_PER_STEP {
            return Ok((late, closed));
        }
    }
}

/// Maintenance works up to the head, so it advances the head first. In a transaction of its own: maintenance must not keep the
/// head locked.
pub(super) async fn advance(store: &PostgresStore, topic: TopicId) -> Result<()> {
    let bounds: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&topic.0, &ADVANCE_ROWS_MAX, &GAPS_NOTED_MAX];
    store
        .connections
        .query("advancing the head", &store.statements.maintenance_advance, &bounds)
        .await
        .map(drop)
}

/// A number of messages as the functions take it: at least one, so that every step makes progress.
pub(super) fn batch(messages_max: u32) -> i32 {
    i32::try_from(messages_max.max(1)).unwrap_or(i32::MAX)
}
