//! Processes: the statements of their repository, and the removal of those that ended long ago.

use std::time::{Duration, Instant};

use rusqlite::params;

use super::driven::query;
use super::fault::Attempt;
use super::work::{Kind, Work};
use super::{SqliteStore, decode, millis};
use crate::error::Result;
use crate::limits::PROCESSES_FORGET_MAX;
use crate::process::rows::Verb;
use crate::transaction::{Row, Value};

/// The text of a statement.
pub(crate) fn process_sql(verb: Verb) -> Option<&'static str> {
    Some(match verb {
        Verb::Insert => super::sql!(process.insert),
        Verb::InsertEvent => super::sql!(process.insert_event),
        Verb::Change => super::sql!(process.change),
        Verb::ChangeEvents => super::sql!(process.change_events),
        // A change is two statements here, and both are prepared: one process after the other costs no round trip.
        Verb::ChangeAll => return None,
        Verb::Load => super::sql!(process.load),
        Verb::LoadAll => super::sql!(process.load_all),
        Verb::FindById => super::sql!(process.find_by_id),
        Verb::FindByStatus => super::sql!(process.find_by_status),
        Verb::FindByTypeAndStatus => super::sql!(process.find_by_type_and_status),
        Verb::FindByBusinessKey => super::sql!(process.find_by_business_key),
        Verb::FindParked => super::sql!(process.find_parked),
        Verb::Log => super::sql!(process.log),
        // Published as any other message: nothing here has roles.
        Verb::Signal => return None,
        Verb::CancelTimer => super::sql!(process.cancel_timer),
        Verb::CancelTimers => super::sql!(process.cancel_timers),
        Verb::Enter => super::sql!(inbox.insert),
    })
}

impl SqliteStore {
    /// Runs a statement that only reads.
    pub(crate) async fn process_rows(&self, verb: Verb, params: Vec<Value>) -> Result<Vec<Row>> {
        self.read(move |connection| query(connection, process_sql(verb).unwrap_or_default(), &params)).await
    }
}

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
