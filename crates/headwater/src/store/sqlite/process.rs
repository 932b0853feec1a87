//! The removal of processes that ended long ago.

use std::time::{Duration, Instant};

use rusqlite::params;

use super::fault::Attempt;
use super::work::{Kind, Work};
use super::{SqliteStore, decode, millis};
use crate::error::Result;
use crate::limits::PROCESSES_FORGET_MAX;

/// Removes processes that ended longer ago than this, with their logs, step by step. Returns how many.
pub(super) async fn clean(store: &SqliteStore, older_than: Duration) -> Result<u64> {
    let mut removed = 0;
    loop {
        let began = Instant::now();
        let step = store.write(Kind::Consume, move |work| forget(work, older_than)).await?;
        removed += u64::from(step);
        if step < PROCESSES_FORGET_MAX {
            return Ok(removed);
        }
        SqliteStore::rest(began).await;
    }
}

fn forget(work: &mut Work<'_>, older_than: Duration) -> Attempt<u32> {
    let before_ms = work.now_ms().saturating_sub(millis(older_than));
    let mut processes = work.connection.prepare_cached(super::sql!(process.forget))?;
    let ids: Vec<Vec<u8>> =
        decode::all(&mut processes, params![before_ms, PROCESSES_FORGET_MAX], |row| row.get(0))?;
    let mut events = work.connection.prepare_cached(super::sql!(process.forget_events))?;
    for id in &ids {
        events.execute(params![id])?;
    }
    Ok(u32::try_from(ids.len()).unwrap_or(u32::MAX))
}
