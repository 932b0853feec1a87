//! Fetch: the messages of a closed range. Reads only.

use bytes::{Bytes, BytesMut};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, MAIN_DB};

use super::fault::Attempt;
use super::{OFFSET_MAX, TOPIC_ID_MAX, decode, offset_of, row_key};
use crate::lease::OffsetRange;
use crate::message::{MESSAGE_BYTES, Message, Offset, weight_of_headers};
use crate::store::{FetchBound, Fetched, Weighing};
use crate::topic::TopicId;

/// Messages reserved for ahead at most: a range may be mostly holes.
const RESERVE_MAX: u64 = 1_000;

/// Payloads up to this size share one buffer per fetch: one allocation instead of one each. Larger ones have their
/// own, so that keeping one of them keeps no more than it.
const SHARED_PAYLOAD_BYTES_MAX: usize = 1024;

/// Payloads up to this size are read with their row. Of a larger one the row brings the size instead, which SQLite knows
/// from the record's header, and the payload is read only if it fits.
const READ_WITH_ROW_BYTES_MAX: i64 = 64 * 1024;

/// The messages of a range, by offset, as far as they fit.
pub(super) fn fetch(
    connection: &Connection,
    topic: TopicId,
    range: OffsetRange,
    bound: FetchBound,
) -> Attempt<Fetched> {
    // Within the topic's own keys, whatever is asked for: the neighbours' are next to them.
    let (first, last) = (range.first.0.max(1), range.last.0.min(OFFSET_MAX));
    if first > last || !(1..=TOPIC_ID_MAX).contains(&topic.0) {
        return Ok(Fetched::default());
    }
    let mut statement = connection.prepare_cached(super::sql!(fetch))?;
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
            // Its size stands for a large one. The column holds nothing but blobs.
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

/// Reads a payload piece by piece into its place: as a column SQLite would make a copy of its own first. The statement that
/// found the row is still open, so this reads the same snapshot.
fn large_payload(connection: &Connection, row_key: i64, bytes: usize) -> Attempt<Bytes> {
    let blob = connection.blob_open(MAIN_DB, "headwater_message", "payload", row_key, true)?;
    let mut payload = vec![0; bytes];
    blob.read_at_exact(&mut payload, 0)?;
    Ok(payload.into())
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
