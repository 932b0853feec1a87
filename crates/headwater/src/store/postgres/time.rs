//! Durations and times as the schema's functions take them, and values as they are stored.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;
use tokio_postgres::types::FromSql;

use crate::error::{Error, ErrorKind, Result};

/// Year 1: long before any message, and well within what PostgreSQL can hold (4713 BC).
const EARLIEST_MS: i64 = -62_135_596_800_000;

/// Whole milliseconds, rounded up: a lease is never shorter than asked for.
pub(super) fn millis(duration: Duration) -> i64 {
    let rounded = duration.as_nanos().div_ceil(1_000_000);
    i64::try_from(rounded).expect("validated to be at most 366 days")
}

/// A time that PostgreSQL can hold: a time before year 1 becomes year 1, which is still earlier than any message.
pub(super) fn holdable(time: Timestamp) -> Timestamp {
    time.max(Timestamp::from_millisecond(EARLIEST_MS).expect("year 1 is within jiff's range"))
}

/// A stored count.
pub(super) fn count(row: &Row, column: &str) -> Result<u64> {
    Ok(u64::try_from(stored::<_, i64>(row, column)?).expect("a count is not negative"))
}

/// A stored value. A value that cannot be read (a time outside of Rust's range) is an error, not a panic.
pub(super) fn stored<'row, I, T>(row: &'row Row, column: I) -> Result<T>
where
    I: RowIndex + std::fmt::Display,
    T: FromSql<'row>,
{
    row.try_get(column).map_err(|error| {
        let text = format!("a stored value cannot be read: {error}; run `headwater doctor`");
        Error::with_source(ErrorKind::Database, text, error)
    })
}
