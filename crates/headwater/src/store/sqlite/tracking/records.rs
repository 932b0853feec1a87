//! Reads completion records.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::step::layers_of;
use crate::lease::OffsetRange;
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::store::Record;
use crate::store::sqlite::fault::Attempt;
use crate::store::sqlite::progress::TopicRange;
use crate::store::sqlite::ranges::{Masks, segments};
use crate::store::sqlite::{OFFSET_MAX, decode, log, offset_of, reader, row_key, topic};

/// Records in one answer at most.
const RECORDS_MAX: u32 = 10_000;

/// The completion records of a range of offsets. Records that do not exist yet are shown as they will be created,
/// except for the time of completion: that will be the time of their creation.
pub(super) fn records(connection: &Connection, name: &TopicName, range: OffsetRange) -> Attempt<Vec<Record>> {
    reader::at_once(connection, |connection| read(connection, name, range))
}

fn read(connection: &Connection, name: &TopicName, range: OffsetRange) -> Attempt<Vec<Record>> {
    let topic_range = TopicRange::load(connection, topic::get(connection, name)?.topic_id)?;
    if !topic_range.counts_references() {
        return Ok(Vec::new());
    }
    let names = names(connection, &topic_range)?;
    let sorted = |mask: u64| {
        let named = names.iter().filter(|(bit, _)| mask & (1 << **bit) != 0);
        let mut groups: Vec<GroupName> = named.map(|(_, name)| name.clone()).collect();
        groups.sort();
        groups
    };
    let (first, last) = (range.first.0.max(1), range.last.0.min(OFFSET_MAX));
    let mut found = made(connection, &topic_range, first, last.min(topic_range.tracked_until))?;
    let left = RECORDS_MAX - u32::try_from(found.len()).unwrap_or(RECORDS_MAX);
    found.extend(to_come(connection, &topic_range, first.max(topic_range.tracked_until + 1), last, left)?);
    let record = |(offset, masks, completed_at): (i64, Masks, Option<Timestamp>)| Record {
        offset: Offset(offset),
        required: sorted(masks.one),
        completed: sorted(masks.two),
        completed_at,
    };
    Ok(found.into_iter().map(record).collect())
}

/// An offset, the groups it is for and the groups that have done it, and since when all have.
type Found = (i64, Masks, Option<Timestamp>);

fn names(connection: &Connection, topic_range: &TopicRange) -> Attempt<BTreeMap<u32, GroupName>> {
    let mut statement = connection.prepare_cached(sql!(tracking.names))?;
    let names = decode::all(&mut statement, [topic_range.topic.0], |row| {
        Ok((row.get::<_, u32>(0)?, row.get::<_, String>(1)?))
    })?;
    Ok(names.into_iter().map(|(bit, name)| Ok((bit, GroupName::new(name)?))).collect::<crate::Result<_>>()?)
}

fn made(connection: &Connection, topic_range: &TopicRange, first: i64, last: i64) -> Attempt<Vec<Found>> {
    if first > last {
        return Ok(Vec::new());
    }
    let mut statement = connection.prepare_cached(sql!(tracking.records))?;
    let bounds = params![row_key(topic_range.topic, first), row_key(topic_range.topic, last), RECORDS_MAX];
    Ok(decode::all(&mut statement, bounds, |row| {
        let masks =
            Masks { one: row.get::<_, i64>(1)?.cast_unsigned(), two: row.get::<_, i64>(2)?.cast_unsigned() };
        let completed_at_ms: Option<i64> = row.get(3)?;
        let completed_at = completed_at_ms.and_then(|at_ms| Timestamp::from_millisecond(at_ms).ok());
        Ok((offset_of(row.get(0)?), masks, completed_at))
    })?)
}

/// Messages without a completion record, as they will be recorded.
fn to_come(
    connection: &Connection,
    topic_range: &TopicRange,
    first: i64,
    last: i64,
    at_most: u32,
) -> Attempt<Vec<Found>> {
    let last = last.min(topic_range.head);
    if first > last || at_most == 0 {
        return Ok(Vec::new());
    }
    let stored = log::stored(connection, topic_range.topic, first, last, at_most)?;
    let last = stored.last().copied().unwrap_or(last);
    let segments = segments(&layers_of(connection, topic_range.topic, first, last)?, first, last);
    let mut at = segments.iter().peekable();
    let mut found = Vec::with_capacity(stored.len());
    for offset in stored {
        while at.next_if(|segment| segment.last < offset).is_some() {}
        let masks = at.peek().map(|segment| segment.masks).unwrap_or_default();
        found.push((offset, masks, None));
    }
    Ok(found)
}
