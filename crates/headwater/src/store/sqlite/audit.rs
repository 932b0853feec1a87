//! The audit: actor and action, written in the transaction that performs the action.

use rusqlite::{Connection, params};

use super::decode;
use super::fault::Attempt;
use super::work::Work;
use crate::store::AuditEntry;

/// Adds an entry; `detail` is a JSON object.
pub(super) fn note(
    work: &Work<'_>,
    actor: &str,
    act: &str,
    topic: Option<&str>,
    group: Option<&str>,
    detail: &serde_json::Value,
) -> Attempt<()> {
    work.connection.prepare_cached(super::sql!(audit.note))?.execute(params![
        work.now_ms(),
        actor,
        act,
        topic,
        group,
        detail.to_string()
    ])?;
    Ok(())
}

/// The entries, newest first.
pub(super) fn list(connection: &Connection, before: i64, limit: u32) -> Attempt<Vec<AuditEntry>> {
    let mut statement = connection.prepare_cached(super::sql!(audit.list))?;
    Ok(decode::all(&mut statement, params![before, limit], |row| {
        Ok(AuditEntry {
            audit_id: row.get(6)?,
            at: decode::timestamp(row, 0)?,
            actor: row.get(1)?,
            act: row.get(2)?,
            topic: row.get(3)?,
            group: row.get(4)?,
            detail: row.get(5)?,
        })
    })?)
}
