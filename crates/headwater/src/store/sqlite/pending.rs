//! What a subscription has not done, as ranges of offsets.
//!
//! Of an ordered subscription whatever is in an outstanding range of any lane, or beyond the slowest lane's cursor, counts
//! as not done: a lane's range holds messages of other lanes too, and it is better to keep one too many.

use rusqlite::{Connection, params};

use super::fault::Attempt;
use super::{OFFSET_MAX, decode, group, offset_of, row_key};
use crate::topic::TopicId;

/// Closed ranges, rising, that neither overlap nor touch.
pub(super) type Spans = Vec<(i64, i64)>;

/// What a subscription has not done, up to an offset.
pub(super) fn pending(connection: &Connection, subscription_id: i32, until: i64) -> Attempt<Spans> {
    let mut statement = connection.prepare_cached(super::sql!("redrive/outstanding.sql"))?;
    let mut spans: Spans = decode::all(&mut statement, params![subscription_id, 0, OFFSET_MAX], |row| {
        Ok((row.get(1)?, row.get(2)?))
    })?;
    spans.push((group::place(connection, subscription_id, 0)?.next, i64::MAX));
    Ok(clipped(&merged(spans), i64::MIN, until))
}

/// Sorted, with what overlaps or touches put together.
fn merged(mut spans: Spans) -> Spans {
    spans.sort_unstable();
    let mut merged: Spans = Vec::with_capacity(spans.len());
    for (first, last) in spans {
        match merged.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// What of spans lies within bounds.
pub(super) fn clipped(spans: &[(i64, i64)], first: i64, last: i64) -> Spans {
    let cut = spans.iter().map(|span| (span.0.max(first), span.1.min(last)));
    cut.filter(|(first, last)| first <= last).collect()
}

/// What lies within bounds and not in spans.
pub(super) fn outside(spans: &[(i64, i64)], first: i64, last: i64) -> Spans {
    let mut left = Vec::new();
    let mut from = first;
    for (inside_first, inside_last) in clipped(spans, first, last) {
        if from < inside_first {
            left.push((from, inside_first - 1));
        }
        from = inside_last + 1;
    }
    if from <= last {
        left.push((from, last));
    }
    left
}

/// Messages stored in some spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) messages: u64,
    /// The first and last of them.
    pub(super) range: Option<(i64, i64)>,
}

/// Counts the messages stored in spans.
pub(super) fn stored(connection: &Connection, topic: TopicId, spans: &[(i64, i64)]) -> Attempt<Stored> {
    let mut statement = connection.prepare_cached(super::sql!("seek/stored.sql"))?;
    let mut all = Stored::default();
    for (first, last) in spans {
        let bounds = [row_key(topic, *first), row_key(topic, *last)];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_put_together_and_cut() {
        assert_eq!(merged(vec![(7, 9), (1, 3), (4, 5), (8, i64::MAX)]), [(1, 5), (7, i64::MAX)]);
        let spans = [(2, 4), (8, 20)];
        assert_eq!(clipped(&spans, 3, 10), [(3, 4), (8, 10)]);
        assert_eq!(clipped(&spans, 5, 7), []);
        assert_eq!(outside(&spans, 1, 25), [(1, 1), (5, 7), (21, 25)]);
        assert_eq!(outside(&spans, 2, 4), []);
        assert_eq!(outside(&[], 3, 2), []);
    }
}
