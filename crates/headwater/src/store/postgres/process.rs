//! The removal of processes that ended long ago.

use std::time::Duration;

use super::PostgresStore;
use super::time::{count, millis};
use crate::error::Result;
use crate::limits::PROCESSES_FORGET_MAX;

/// Removes processes that ended longer ago than this, with their logs, each step in a transaction of its own. Returns how
/// many.
pub(super) async fn clean(store: &PostgresStore, older_than: Duration) -> Result<u64> {
    let most = i32::try_from(PROCESSES_FORGET_MAX).unwrap_or(i32::MAX);
    let mut removed = 0;
    loop {
        let now = store.clock.injected();
        let rows = store
            .connections
            .query(
                "removing processes",
                &store.statements.process_forget,
                &[&millis(older_than), &most, &now],
            )
            .await?;
        let step = count(&rows[0], "forgotten")?;
        removed += step;
        if step < u64::from(PROCESSES_FORGET_MAX) {
            return Ok(removed);
        }
    }
}
