//! Outstanding ranges as rows: read, store, remove, and the token counter.

use rusqlite::{Connection, Row, params};

use super::fault::Attempt;
use crate::lease::OffsetRange;
use crate::message::Offset;

/// `due_at_ms` of a range that may be claimed at once.
pub(super) const DUE_NOW: i64 = 0;
/// `due_at_ms` of a lease without a deadline.
pub(super) const DUE_NEVER: i64 = i64::MAX;

/// One row of `headwater_outstanding`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) token: i64,
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) subscription_id: i32,
    pub(super) lane: Option<u16>,
    pub(super) owner: Option<String>,
    pub(super) due_at_ms: i64,
    pub(super) attempts: u32,
    pub(super) suspect: bool,
    pub(super) parked: bool,
    pub(super) key: Option<String>,
    pub(super) last_error: Option<String>,
}

impl Part {
    /// Reads the columns in the order in which every statement lists them.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Part {
            token: row.get(0)?,
            first: row.get(1)?,
            last: row.get(2)?,
            subscription_id: row.get(3)?,
            lane: row.get(4)?,
            owner: row.get(5)?,
            due_at_ms: row.get(6)?,
            attempts: row.get(7)?,
            suspect: row.get(8)?,
            parked: row.get(9)?,
            key: row.get(10)?,
            last_error: row.get(11)?,
        })
    }

    /// The offsets of the range.
    pub(super) fn range(&self) -> OffsetRange {
        OffsetRange::new(Offset(self.first), Offset(self.last))
    }

    /// The number of offsets.
    pub(super) fn span(&self) -> u64 {
        self.range().span()
    }

    /// Whether it is a lease whose deadline has passed.
    pub(super) fn has_expired(&self, now_ms: i64) -> bool {
        self.owner.is_some() && self.due_at_ms <= now_ms
    }

    /// Stores the row.
    pub(super) fn insert(&self, connection: &Connection) -> Attempt<()> {
        debug_assert!(self.first <= self.last, "a range runs upwards");
        connection.prepare_cached(super::sql!(claim.range_insert))?.execute(params![
            self.token,
            self.first,
            self.last,
            self.subscription_id,
            self.lane,
            self.owner,
            self.due_at_ms,
            self.attempts,
            self.suspect,
            self.parked,
            self.key,
            self.last_error,
        ])?;
        Ok(())
    }

    /// Removes the row.
    pub(super) fn delete(&self, connection: &Connection) -> Attempt<()> {
        connection
            .prepare_cached(super::sql!(claim.range_delete))?
            .execute(params![self.token, self.first])?;
        Ok(())
    }
}

/// A fencing token that was never issued before: a counter in the high bits, 31 random bits below.
///
/// The counter alone repeats where history is lost: a power cut undoes claims, and a restored copy has an older
/// counter. The random bits alone could repeat within one history. Together a lost token equals a later one only if
/// both agree.
pub(super) fn next_token(connection: &Connection) -> Attempt<i64> {
    let count: i64 = connection.prepare_cached(super::sql!(claim.token))?.query_row([], |row| row.get(0))?;
    Ok(token(count, rand::random()))
}

/// Tokens rise until the counter passes 32 bits, so consecutive tokens are adjacent in the table.
fn token(count: i64, random: u32) -> i64 {
    (count & 0xffff_ffff) << 31 | i64::from(random >> 1)
}
