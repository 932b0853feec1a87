//! What the groups of the demo have done, as they recorded it: an application table in the same file.

use std::path::Path;
use std::time::Duration;

use headwater::Offset;
use headwater::rusqlite::{self, Connection, params};

/// Processes write at the same time; each waits this long for the lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// The totals of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Account {
    /// Lines in the ledger.
    pub(super) lines: u64,
    /// Different messages among them.
    pub(super) messages: u64,
    /// The highest offset among them.
    pub(super) last: i64,
    /// Lines a second between the first and the last.
    pub(super) rate: f64,
}

/// No unique key: a message that took effect twice has to show.
pub(super) fn create(file: impl AsRef<Path>) -> rusqlite::Result<()> {
    open(file)?.execute_batch(
        "CREATE TABLE demo_ledger (group_name TEXT NOT NULL, message_offset INTEGER NOT NULL, at_ms INTEGER NOT NULL);
         CREATE INDEX demo_ledger_of ON demo_ledger (group_name, message_offset);",
    )
}

/// Records that a group has handled a message, in the given transaction.
pub(super) fn note(connection: &Connection, group: &str, offset: Offset) -> rusqlite::Result<()> {
    let sql = "INSERT INTO demo_ledger (group_name, message_offset, at_ms)
               VALUES (?1, ?2, CAST(unixepoch('subsec') * 1000 AS INTEGER))";
    connection.prepare_cached(sql)?.execute(params![group, offset.0]).map(drop)
}

/// Reads the totals of a group.
pub(super) fn account(file: impl AsRef<Path>, group: &str) -> rusqlite::Result<Account> {
    let sql = "SELECT count(*), count(DISTINCT message_offset), coalesce(max(message_offset), 0),
                      count(*) * 1000.0 / max(max(at_ms) - min(at_ms), 1)
               FROM demo_ledger WHERE group_name = ?1";
    open(file)?.query_row(sql, [group], |row| {
        let rate: Option<f64> = row.get(3)?;
        let (lines, messages): (i64, i64) = (row.get(0)?, row.get(1)?);
        Ok(Account {
            lines: lines.unsigned_abs(),
            messages: messages.unsigned_abs(),
            last: row.get(2)?,
            rate: rate.unwrap_or_default(),
        })
    })
}

/// Whether a group has handled a message.
pub(super) fn has(file: impl AsRef<Path>, group: &str, offset: Offset) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM demo_ledger WHERE group_name = ?1 AND message_offset = ?2)";
    open(file)?.query_row(sql, params![group, offset.0], |row| row.get(0))
}

fn open(file: impl AsRef<Path>) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(PATIENCE)?;
    Ok(connection)
}
