//! How many messages are stored in what a subscription has not done: what operators are told.
//!
//! Counting reads the log, so it is a reader's work: whoever holds the writer takes what was counted before.

use rusqlite::Connection;

use super::fault::Attempt;
use super::{decode, offset_of, row_key};
use crate::store::sqlite::ranges::Ranges;
use crate::topic::TopicId;

/// Messages stored in some ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) messages: u64,
    /// The first and last of them.
    pub(super) range: Option<(i64, i64)>,
}

/// Counts the messages stored in ranges.
pub(super) fn stored(connection: &Connection, topic: TopicId, ranges: &Ranges) -> Attempt<Stored> {
    let mut statement = connection.prepare_cached(super::sql!(stuck.stored))?;
    let mut all = Stored::default();
    for (first, last) in ranges.iter() {
        let bounds = [row_key(topic, first), row_key(topic, last)];
        let (messages, ends) = statement.query_row(bounds, |row| {
            let ends: (Option<i64>, Option<i64>) = (row.get(1)?, row.get(2)?);
            Ok((decode::count(row, 0)?, ends.0.zip(ends.1)))
        })?;
        all.messages += messages;
        if let Some((lowest, highest)) = ends {
            let lowest = all.range.map_or(offset_of(lowest), |(lowest, _)| lowest);
            all.range = Some((lowest, offset_of(highest)));
        }
    }
    Ok(all)
}
