//! The clock guard of the writer: it detects a step of the machine's clock before any command of a transaction uses
//! the clock.
//!
//! The check and the commands share a transaction, and one process writes at a time. So no lease is handed out,
//! extended or settled by a clock that stepped before the deadlines moved with it. If the transaction is rolled back,
//! the memory stays unchanged and the next transaction detects the step again.

use rusqlite::{Connection, params};

use super::work::now_ms;
use crate::clock::Clock;
use crate::clock::guard::{Memory, Reading, Stored, step_ms};

/// Reads the clock inside a transaction, and moves deadlines if it stepped. `Some` is what to remember once the
/// transaction is committed. If nothing has changed it only reads a row: another process may have moved deadlines for
/// a step that was over before this one checked again.
pub(super) fn check(
    connection: &Connection,
    clock: &Clock,
    memory: Option<Memory>,
) -> rusqlite::Result<Option<Memory>> {
    let asked = clock.monotonic();
    let reading = Reading { now_ms: now_ms(clock), asked, answered: clock.monotonic() };
    let mut stored = connection
        .prepare_cached(super::sql!(clock.stored))?
        .query_row([], |row| Ok(Stored { latest_ms: row.get(0)?, moved_ms: row.get(1)?, steady_ms: None }))?;
    let step_ms = step_ms(memory.as_ref(), &reading, &stored);
    let is_changed = memory.is_none_or(|memory| memory.is_old(asked) || memory.moved_ms() != stored.moved_ms);
    if step_ms == 0 && !is_changed {
        return Ok(None);
    }
    if step_ms != 0 {
        move_deadlines(connection, step_ms, reading.now_ms)?;
        stored.moved_ms = stored.moved_ms.saturating_add(step_ms);
        tracing::warn!(step_ms, "clock stepped, deadlines moved");
    }
    connection.prepare_cached(super::sql!(clock.stamp))?.execute(params![reading.now_ms, stored.moved_ms])?;
    Ok(Some(Memory::after(memory, reading, stored.moved_ms)))
}

fn move_deadlines(connection: &Connection, step_ms: i64, now_ms: i64) -> rusqlite::Result<()> {
    // A deadline that had passed before a step forward stays passed; one in the past after a step back is as due as
    // before.
    let after_ms = now_ms.saturating_sub(step_ms.max(0));
    connection.prepare_cached(super::sql!(clock.move_ranges))?.execute(params![step_ms, after_ms])?;
    connection.prepare_cached(super::sql!(clock.move_outbox))?.execute(params![step_ms, after_ms, now_ms])?;
    connection.prepare_cached(super::sql!(clock.move_owners))?.execute(params![step_ms, now_ms])?;
    connection.prepare_cached(super::sql!(clock.move_dedup))?.execute(params![step_ms, after_ms, now_ms])?;
    Ok(())
}
