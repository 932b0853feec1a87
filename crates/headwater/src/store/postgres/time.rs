//! Durations and times as the schema's functions take them.

use std::time::Duration;

use jiff::Timestamp;

/// Year 1: long before any message, and well within what PostgreSQL can hold (4713 BC).
const EARLIEST_MS: i64 = -62_135_596_800_000;

/// Whole milliseconds, rounded up: a lease is never shorter than asked for.
pub(super) fn millis(duration: Duration) -> i64 {
    let rounded = duration.as_nanos().div_ceil(1_000_000);
    i64::try_from(rounded).expect("validated to be at most 366 days")
}

/// A time that PostgreSQL can hold: what is earlier than any message may as well be year 1.
pub(super) fn holdable(time: Timestamp) -> Timestamp {
    time.max(Timestamp::from_millisecond(EARLIEST_MS).expect("year 1 is within jiff's range"))
}
