//! Owners that say they are alive, and what becomes of the leases of those that fell silent.

use std::time::Duration;

use super::PostgresStore;
use super::clock::{self, On};
use super::time::{count, millis, stored};
use crate::error::Result;
use crate::name::Owner;
use crate::topic::TopicId;

/// A heartbeat or an extension that takes longer has failed. The next one is due soon, and has another connection.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn heartbeat(store: &PostgresStore, owner: &Owner, silent_for: Duration) -> Result<u64> {
    // Before anybody is judged by it.
    clock::look(store, On::Leases).await?;
    // On the leases' own pool: a process whose work pool is busy is not dead.
    let rows = store
        .connections
        .query_leases_within(
            ANSWER_TIMEOUT,
            "beating",
            &store.statements.heartbeat,
            &[&owner.as_str(), &millis(silent_for), &store.clock.injected()],
        )
        .await?;
    let mut ended = 0;
    for row in &rows {
        let leases = count(row, "leases")?;
        tracing::warn!(
            owner = stored::<_, &str>(row, "dead_owner")?,
            leases,
            "owner fell silent, its leases end"
        );
        stored::<_, Vec<i32>>(row, "topic_ids")?.into_iter().for_each(|topic| store.hub.wake(TopicId(topic)));
        ended += leases;
    }
    Ok(ended)
}

pub(super) async fn depart(store: &PostgresStore, owner: &Owner) -> Result<()> {
    store.connections.query_leases("departing", &store.statements.depart, &[&owner.as_str()]).await.map(drop)
}
