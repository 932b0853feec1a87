//! Fetch: the messages of a closed range. Reads only.

use bytes::{Bytes, BytesMut};
use rusqlite::Connection;

use super::fault::Attempt;
use super::{OFFSET_MAX, TOPIC_ID_MAX, decode, offset_of, row_key};
use crate::lease::OffsetRange;
use crate::message::{Message, Offset};
use crate::topic::TopicId;

/// Messages reserved for ahead at most: a range may be mostly holes.
const RESERVE_MAX: u64 = 1_000;

/// Payloads up to this size share one buffer per fetch: one allocation instead of one each. Larger ones have their
/// own, so that keeping one of them keeps no more than it.
const SHARED_PAYLOAD_BYTES_MAX: usize = 1024;

/// The messages of a range, by offset.
pub(super) fn fetch(connection: &Connection, topic: TopicId, range: OffsetRange) -> Attempt<Vec<Message>> {
    // Within the topic's own keys, whatever is asked for: the neighbours' are next to them.
    let (first, last) = (range.first.0.max(1), range.last.0.min(OFFSET_MAX));
    if first > last || !(1..=TOPIC_ID_MAX).contains(&topic.0) {
        return Ok(Vec::new());
    }
    let mut statement = connection.prepare_cached(super::sql!("fetch.sql"))?;
    let mut rows = statement.query([row_key(topic, first), row_key(topic, last)])?;
    let span = OffsetRange::new(Offset(first), Offset(last)).span();
    let mut messages = Vec::with_capacity(span.min(RESERVE_MAX).try_into().unwrap_or_default());
    let mut ends = Vec::with_capacity(messages.capacity());
    let mut shared = BytesMut::new();
    while let Some(row) = rows.next()? {
        let payload = decode::blob(row, 4)?;
        let payload = if payload.len() > SHARED_PAYLOAD_BYTES_MAX {
            Bytes::copy_from_slice(payload)
        } else {
            shared.extend_from_slice(payload);
            Bytes::new()
        };
        messages.push(Message {
            offset: Offset(offset_of(row.get(0)?)),
            message_id: decode::uuid(row, 1)?,
            key: decode::text(row, 2)?,
            message_type: decode::text(row, 3)?,
            payload,
            content_type: decode::text(row, 5)?,
            headers: decode::headers(row, 6)?,
            correlation_id: decode::text(row, 7)?,
            created_at: decode::timestamp(row, 8)?,
        });
        ends.push(shared.len());
    }
    share_out(&mut messages, &ends, &shared.freeze());
    Ok(messages)
}

/// Gives every message its part of the shared buffer; `ends` is where the buffer ended after each message.
fn share_out(messages: &mut [Message], ends: &[usize], shared: &Bytes) {
    let mut start = 0;
    for (message, end) in messages.iter_mut().zip(ends) {
        if *end > start {
            message.payload = shared.slice(start..*end);
        }
        start = *end;
    }
}
