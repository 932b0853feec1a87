//! The log: everything that reads or writes stored messages. Statements elsewhere name neither the table nor its
//! columns, so that the storage of messages can change here alone. A statement that joins the log with another table
//! is in `sql/log.sql` too.

use std::ops::ControlFlow;

use bytes::{Bytes, BytesMut};
use rusqlite::types::{ToSql, ValueRef};
use rusqlite::{CachedStatement, Connection, MAIN_DB, OptionalExtension, params};
use uuid::Uuid;

use super::fault::Attempt;
use super::ranges::{Masks, Ranges};
use super::step_bytes::Page;
use super::{OFFSET_MAX, TOPIC_ID_MAX, decode, offset_of, row_key};
use crate::dead_letter::Redriven;
use crate::lease::OffsetRange;
use crate::limits::NAME_BYTES_MAX;
use crate::message::{MESSAGE_BYTES, Message, NewMessage, Offset, lane_of, weight_of_headers};
use crate::store::{FetchBound, Fetched, Head, Weighing};
use crate::topic::TopicId;

/// Appends messages, with a statement that is prepared once for a batch.
pub(super) struct Appender<'c>(CachedStatement<'c>);

impl<'c> Appender<'c> {
    pub(super) fn new(connection: &'c Connection) -> Attempt<Self> {
        Ok(Appender(connection.prepare_cached(sql!(log.append))?))
    }

    pub(super) fn append(
        &mut self,
        topic: TopicId,
        offset: i64,
        now_ms: i64,
        message: &NewMessage,
        message_id: Uuid,
        headers: Option<&str>,
    ) -> Attempt<()> {
        self.0.execute(params![
            row_key(topic, offset),
            now_ms,
            message_id.as_bytes().as_slice(),
            message.key,
            message.message_type,
            message.content_type,
            headers,
            message.correlation_id,
            &message.payload[..],
        ])?;
        Ok(())
    }
}

/// Appends a scheduled message from the schedule.
pub(super) fn append_scheduled(
    connection: &Connection,
    topic: TopicId,
    offset: i64,
    schedule_id: i64,
    now_ms: i64,
) -> Attempt<()> {
    let mut statement = connection.prepare_cached(sql!(log.append_scheduled))?;
    statement.execute(params![schedule_id, row_key(topic, offset), now_ms])?;
    Ok(())
}

/// Messages to reserve memory for at most: a range may be mostly holes.
const RESERVE_MAX: u64 = 1_000;

/// Payloads up to this size share one buffer per fetch: one allocation instead of one each. Larger ones have their
/// own, so that keeping one of them keeps no other in memory.
const SHARED_PAYLOAD_BYTES_MAX: usize = 1024;

/// Payloads up to this size are read with their row. For a larger one the row has the size instead, which SQLite
/// reads from the record's header, and the payload is read only if it fits.
const READ_WITH_ROW_BYTES_MAX: i64 = 64 * 1024;

/// The messages of a range, by offset, as far as they fit the bound.
pub(super) fn fetch(
    connection: &Connection,
    topic: TopicId,
    range: OffsetRange,
    bound: FetchBound,
) -> Attempt<Fetched> {
    // Limited to the topic's own keys, whatever range is requested: the keys of other topics are adjacent.
    let (first, last) = (range.first.0.max(1), range.last.0.min(OFFSET_MAX));
    if first > last || !(1..=TOPIC_ID_MAX).contains(&topic.0) {
        return Ok(Fetched::default());
    }
    let mut statement = connection.prepare_cached(sql!(log.fetch))?;
    let bounds = [row_key(topic, first), row_key(topic, last), READ_WITH_ROW_BYTES_MAX];
    let mut rows = statement.query(bounds)?;
    let span = OffsetRange::new(Offset(first), Offset(last)).span();
    let mut messages = Vec::with_capacity(span.min(RESERVE_MAX).try_into().unwrap_or_default());
    let mut ends = Vec::with_capacity(messages.capacity());
    let mut shared = BytesMut::new();
    let mut weighing = Weighing::new(bound);
    let mut left = None;
    while let Some(row) = rows.next()? {
        let row_key = row.get(0)?;
        let offset = Offset(offset_of(row_key));
        let headers = decode::headers(row, 6)?;
        let payload = row.get_ref(4)?;
        let payload_bytes = match payload {
            ValueRef::Blob(bytes) => bytes.len(),
            // A large payload is represented by its size. The column contains only blobs.
            _ => usize::try_from(row.get::<_, i64>(4)?).unwrap_or_default(),
        };
        if !weighing.fits(MESSAGE_BYTES + payload_bytes + weight_of_headers(&headers)) {
            left = Some(OffsetRange::new(offset, range.last));
            break;
        }
        let payload = match payload {
            ValueRef::Blob(bytes) if bytes.len() <= SHARED_PAYLOAD_BYTES_MAX => {
                shared.extend_from_slice(bytes);
                Bytes::new()
            }
            ValueRef::Blob(bytes) => Bytes::copy_from_slice(bytes),
            _ => large_payload(connection, row_key, payload_bytes)?,
        };
        messages.push(Message {
            offset,
            message_id: decode::uuid(row, 1)?,
            key: decode::text(row, 2)?,
            message_type: decode::text(row, 3)?,
            payload,
            content_type: decode::text(row, 5)?,
            headers,
            correlation_id: decode::text(row, 7)?,
            created_at: decode::timestamp(row, 8)?,
        });
        ends.push(shared.len());
    }
    share_out(&mut messages, &ends, &shared.freeze());
    Ok(Fetched { messages, left })
}

/// The last offset of a topic. One writer commits at a time: there are no gaps, and nothing is ever pending.
pub(super) fn head(connection: &Connection, topic: TopicId) -> Attempt<Option<Head>> {
    let mut statement = connection.prepare_cached(sql!(log.head))?;
    let found = statement.query_row([topic.0], |row| {
        Ok(Head { offset: Offset(row.get(0)?), gaps: Vec::new(), pending: false })
    });
    Ok(found.optional()?)
}

/// Reads a payload in pieces into its own buffer: as a column SQLite would make a copy first. The statement that
/// found the row is still open, so this reads the same snapshot.
fn large_payload(connection: &Connection, row_key: i64, bytes: usize) -> Attempt<Bytes> {
    let blob = connection.blob_open(MAIN_DB, "headwater_message", "payload", row_key, true)?;
    let mut payload = vec![0; bytes];
    blob.read_at_exact(&mut payload, 0)?;
    Ok(payload.into())
}

/// Gives every message its slice of the shared buffer; `ends` is where the buffer ended after each message.
fn share_out(messages: &mut [Message], ends: &[usize], shared: &Bytes) {
    let mut start = 0;
    for (message, end) in messages.iter_mut().zip(ends) {
        if *end > start {
            message.payload = shared.slice(start..*end);
        }
        start = *end;
    }
}

/// The first message stored in a closed range: its offset, and when it was created, in ms.
pub(super) fn first_in(
    connection: &Connection,
    topic: TopicId,
    first: i64,
    last: i64,
) -> Attempt<Option<(i64, i64)>> {
    let mut statement = connection.prepare_cached(sql!(log.first))?;
    let found = statement.query_row([row_key(topic, first), row_key(topic, last)], |row| {
        Ok((offset_of(row.get(0)?), row.get(1)?))
    });
    Ok(found.optional()?)
}

/// The first offset of a closed range stored at or after a time, else the one after the last. A binary search: one
/// writer at a time stamps messages as it appends them, so times rise with offsets as long as the clock does.
pub(super) fn first_since(
    connection: &Connection,
    topic: TopicId,
    first: i64,
    last: i64,
    at_ms: i64,
) -> Attempt<i64> {
    // Everything below `low` is earlier; `high` and everything above is not, or is past the end.
    let (mut low, mut high) = (first, last + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        match first_in(connection, topic, middle, high - 1)? {
            Some((offset, created_at_ms)) if created_at_ms < at_ms => low = offset + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// The lowest stored offsets of a closed range, at most `at_most`.
pub(super) fn stored(
    connection: &Connection,
    topic: TopicId,
    first: i64,
    last: i64,
    at_most: u32,
) -> Attempt<Vec<i64>> {
    let mut statement = connection.prepare_cached(sql!(log.stored))?;
    let bounds = params![row_key(topic, first), row_key(topic, last), at_most];
    Ok(decode::all(&mut statement, bounds, |row| Ok(offset_of(row.get(0)?)))?)
}

/// The same, but only as many as one step may remove: their payloads are bounded, too.
pub(super) fn page(
    connection: &Connection,
    topic: TopicId,
    first: i64,
    last: i64,
    at_most: u32,
) -> Attempt<Vec<i64>> {
    let statement = connection.prepare_cached(sql!(log.stored))?;
    let page = Page::load(statement, params![row_key(topic, first), row_key(topic, last), at_most])?;
    Ok(page.keys.into_iter().map(offset_of).collect())
}

/// Messages stored in some ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) messages: u64,
    /// The first and last of them.
    pub(super) range: Option<(i64, i64)>,
}

/// Counts the messages stored in ranges. It reads the log, so it runs on a reader; the writer uses the earlier count.
pub(super) fn count(connection: &Connection, topic: TopicId, ranges: &Ranges) -> Attempt<Stored> {
    let mut statement = connection.prepare_cached(sql!(log.count))?;
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

/// The first and the last stored offset of a topic.
pub(super) fn bounds(connection: &Connection, topic: TopicId) -> Attempt<Option<(i64, i64)>> {
    let mut statement = connection.prepare_cached(sql!(log.bounds))?;
    let ends: (Option<i64>, Option<i64>) = statement
        .query_row([row_key(topic, 0), row_key(topic, OFFSET_MAX)], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(ends.0.map(offset_of).zip(ends.1.map(offset_of)))
}

/// Of a selection of dead letters, those whose message is stored, and those whose message is not. The parameters are
/// those of a selection.
pub(super) fn count_dead_letters(connection: &Connection, selection: &[&dyn ToSql]) -> Attempt<Redriven> {
    let mut statement = connection.prepare_cached(sql!(log.count_dead_letters))?;
    Ok(statement.query_row(selection, |row| {
        Ok(Redriven { redriven: decode::count(row, 0)?, gone: decode::count(row, 1)? })
    })?)
}

/// The messages of a closed range: offset, id and key, which determine a message's lane.
pub(super) fn keys(
    connection: &Connection,
    topic: TopicId,
    first: i64,
    last: i64,
) -> Attempt<Vec<(i64, Uuid, Option<String>)>> {
    let mut statement = connection.prepare_cached(sql!(log.keys))?;
    let bounds = [row_key(topic, first), row_key(topic, last)];
    Ok(decode::all(&mut statement, bounds, |row| {
        Ok((offset_of(row.get(0)?), decode::uuid(row, 1)?, decode::text(row, 2)?))
    })?)
}

/// The id of the message at an offset.
pub(super) fn message_id(connection: &Connection, topic: TopicId, offset: i64) -> Attempt<Option<[u8; 16]>> {
    let mut statement = connection.prepare_cached(sql!(log.message_id))?;
    Ok(statement.query_row([row_key(topic, offset)], |row| row.get(0)).optional()?)
}

/// A small read as applications do them: the newest message of the store.
pub(super) fn probe(connection: &Connection) -> Attempt<()> {
    let mut statement = connection.prepare_cached(sql!(log.newest))?;
    statement.query_row([], |row| row.get::<_, i64>(0)).optional()?;
    Ok(())
}

/// How messages that a subscription gives up become dead letters.
pub(super) struct Burial<'a> {
    pub(super) subscription_id: i32,
    /// Of an ordered subscription: the lane, and the number of lanes. Only the lane's own messages are buried: the
    /// others of the range belong to the other lanes.
    pub(super) lane: Option<(u16, u16)>,
    pub(super) error: &'a str,
    pub(super) attempts: u32,
    /// The owner that gave them up, or whose lease expired; `None` if an operator did.
    pub(super) owner: Option<&'a str>,
    pub(super) now_ms: i64,
}

/// Copies the messages of a range to the dead letters; returns their offsets.
pub(super) fn bury(
    connection: &Connection,
    topic: TopicId,
    range: OffsetRange,
    burial: &Burial<'_>,
) -> Attempt<Vec<Offset>> {
    let (first, last) = (range.first.0, range.last.0);
    let offsets: Vec<i64> = match burial.lane {
        None => stored(connection, topic, first, last, u32::MAX)?,
        Some((lane, lanes)) => {
            let found = keys(connection, topic, first, last)?.into_iter();
            let mine = found.filter(|(_, id, key)| lane_of(key.as_deref(), *id, lanes) == lane);
            mine.map(|(offset, ..)| offset).collect()
        }
    };
    let mut statement = connection.prepare_cached(sql!(log.bury))?;
    for offset in &offsets {
        statement.execute(params![
            row_key(topic, *offset),
            Uuid::now_v7().as_bytes().as_slice(),
            burial.subscription_id,
            burial.error,
            burial.attempts,
            burial.now_ms,
            // Read from an error in one case: a text that is no name must not keep the message from being buried.
            burial.owner.filter(|owner| (1..=NAME_BYTES_MAX).contains(&owner.len()))
        ])?;
    }
    Ok(offsets.into_iter().map(Offset).collect())
}

/// A message as retention sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aged {
    pub(super) offset: i64,
    pub(super) created_at_ms: i64,
    /// When its completion record was completed.
    pub(super) completed_at_ms: Option<i64>,
    pub(super) payload_bytes: u64,
}

/// Passes the messages of a closed range to `visit` until it breaks.
pub(super) fn visit_ages<B>(
    connection: &Connection,
    topic: TopicId,
    first: i64,
    last: i64,
    mut visit: impl FnMut(Aged) -> ControlFlow<B>,
) -> Attempt<ControlFlow<B>> {
    let mut statement = connection.prepare_cached(sql!(log.ages))?;
    let mut rows = statement.query([row_key(topic, first), row_key(topic, last)])?;
    while let Some(row) = rows.next()? {
        let aged = Aged {
            offset: offset_of(row.get(0)?),
            created_at_ms: row.get(1)?,
            completed_at_ms: row.get(2)?,
            payload_bytes: decode::count(row, 3)?,
        };
        if let ControlFlow::Break(with) = visit(aged) {
            return Ok(ControlFlow::Break(with));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Creates the completion records of the messages stored in a closed range, which all have the same masks: required
/// and completed. Returns how many.
pub(super) fn record(
    connection: &Connection,
    topic: TopicId,
    first: i64,
    last: i64,
    masks: Masks,
    completed_at_ms: Option<i64>,
) -> Attempt<u64> {
    let mut statement = connection.prepare_cached(sql!(log.record))?;
    Ok(statement.execute(params![
        row_key(topic, first),
        row_key(topic, last),
        masks.one.cast_signed(),
        masks.two.cast_signed(),
        completed_at_ms
    ])? as u64)
}

/// Removes the messages of a closed range. Returns how many.
pub(super) fn remove(connection: &Connection, topic: TopicId, first: i64, last: i64) -> Attempt<u64> {
    let mut statement = connection.prepare_cached(sql!(log.remove))?;
    Ok(statement.execute([row_key(topic, first), row_key(topic, last)])? as u64)
}
