//! The log: reading messages, and where they are stored. The rest of it is in `schema/functions/log`.

use std::collections::HashMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::PostgresStore;
use super::connect::Connections;
use super::statements::Statements;
use super::time::stored;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{LeaseId, OffsetRange};
use crate::limits::{ADVANCE_ROWS_MAX, GAPS_NOTED_MAX};
use crate::message::{Headers, MESSAGE_BYTES, Message, Offset};
use crate::store::{FetchBound, Fetched, Head, Weighing};
use crate::topic::TopicId;

/// Payloads and headers up to this size are read with their row. Larger ones are read only if they fit. PostgreSQL
/// determines the size of a payload, and of headers that are not compressed, without reading them.
const READ_WITH_ROW_BYTES_MAX: i32 = 8 * 1024;
/// How many bytes of large payloads or headers one query reads. The client holds a query's whole answer in addition to the
/// messages made of it, and a connection keeps its largest buffer.
const READ_AT_ONCE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How long a reader waits for another process that is advancing the head, first and last; each wait is twice the one before.
const HEAD_WAIT_MIN: Duration = Duration::from_millis(1);
const HEAD_WAIT_MAX: Duration = Duration::from_millis(256);

/// Offset and size of payloads or headers that were not read with their row, offsets rising.
type Large = [(i64, usize)];

/// The tables that may have messages of a topic and from which rows are deleted one by one.
pub(super) fn tables(topic: TopicId) -> [String; 3] {
    ["message_shared".to_owned(), format!("message_t{topic}"), format!("message_t{topic}_rest")]
}

/// A server to read messages from, and the statements for it.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) connections: &'a Connections,
    pub(super) statements: &'a Statements,
}

/// The messages of a range, by offset, as far as they fit.
pub(super) async fn fetch(
    source: Source<'_>,
    topic: TopicId,
    range: OffsetRange,
    bound: FetchBound,
) -> Result<Fetched> {
    let params: [&(dyn ToSql + Sync); 5] =
        [&topic.0, &range.first.0, &range.last.0, &READ_WITH_ROW_BYTES_MAX, &rows_max(bound)];
    let rows = source.connections.query("fetching messages", &source.statements.log_fetch, &params).await?;
    let sizes = sizes_of(source, topic, &rows).await?;
    let mut weighing = Weighing::new(bound);
    let mut fetched = Fetched::default();
    let (mut large_payloads, mut large_headers) = (Vec::new(), Vec::new());
    for row in &rows {
        let message = message_of(row)?;
        let offset = message.offset.0;
        let (is_payload_large, are_headers_large) = is_large(row)?;
        let size = sizes.get(&offset);
        let payload_bytes = size.filter(|_| is_payload_large).map(|(payload, _)| *payload);
        let headers_bytes = size.filter(|_| are_headers_large).map(|(_, headers)| *headers);
        let left_out = payload_bytes.unwrap_or_default() + headers_bytes.unwrap_or_default();
        if !weighing.fits(message.weight() + left_out) {
            fetched.left = Some(OffsetRange::new(message.offset, range.last));
            break;
        }
        if size.is_none() && (is_payload_large || are_headers_large) {
            // Removed since the row was read: missing, as if removed before. Its weight still counts, because `rows_max`
            // relies on the weight of every row.
            continue;
        }
        large_payloads.extend(payload_bytes.map(|bytes| (offset, bytes)));
        large_headers.extend(headers_bytes.map(|bytes| (offset, bytes)));
        fetched.messages.push(message);
    }
    // Rows cut off by the limit would be taken for missing messages, and acked unread.
    assert!(fetched.left.is_some() || rows_max(bound) > rows.len() as i64, "one of the rows does not fit");
    drop(rows);
    if !large_payloads.is_empty() || !large_headers.is_empty() {
        let mut payloads = read_payloads(source, topic, &large_payloads).await?;
        let mut headers = read_headers(source, topic, &large_headers).await?;
        fetched.messages.retain_mut(|message| {
            let offset = message.offset.0;
            put(&mut message.payload, offset, &large_payloads, &mut payloads)
                && put(&mut message.headers, offset, &large_headers, &mut headers)
        });
    }
    Ok(fetched)
}

/// Offsets and keys of the messages with a key that a lease holds, from an offset on.
pub(super) async fn held_keys(
    store: &PostgresStore,
    topic: TopicId,
    lease: &LeaseId,
    from: Offset,
) -> Result<Vec<(Offset, String)>> {
    let params: [&(dyn ToSql + Sync); 5] =
        [&topic.0, &lease.token.0, &lease.subscription_id.0, &lease.owner.as_str(), &from.0];
    let doing = format!("reading the keys of lease {}", lease.token);
    let rows = store.connections.query(&doing, &store.statements.log_held_keys, &params).await?;
    rows.iter().map(|row| Ok((Offset(stored(row, "message_offset")?), stored(row, "key")?))).collect()
}

/// The head of a topic after an advance; as it can be read where nothing can be advanced.
///
/// A message that was published before the call is at or below the head, unless an earlier offset is missing: where
/// another process is advancing the head, possibly since before the message committed, it is asked again, in a transaction
/// of its own. A head that stays locked (by a transaction of a program) is returned as it is, with `pending` set.
pub(super) async fn head(store: &PostgresStore, topic: TopicId) -> Result<Option<Head>> {
    let (doing, statements) = ("reading the head", &store.statements);
    let advanced: [&(dyn ToSql + Sync); 3] = [&topic.0, &ADVANCE_ROWS_MAX, &GAPS_NOTED_MAX];
    let mut wait = HEAD_WAIT_MIN;
    loop {
        let rows = match store.connections.query(doing, &statements.log_advanced_head, &advanced).await {
            Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnly) => {
                store.connections.query(doing, &statements.log_head, &[&topic.0]).await
            }
            answer => answer,
        }?;
        let Some(row) = rows.first() else { return Ok(None) };
        let busy = stored::<_, bool>(row, "skipped")? && stored::<_, bool>(row, "taken")?;
        if !busy || wait > HEAD_WAIT_MAX {
            return head_of(row);
        }
        tokio::time::sleep(wait).await;
        wait *= 2;
    }
}

fn head_of(row: &Row) -> Result<Option<Head>> {
    let Some(head) = stored::<_, Option<i64>>(row, "head")? else { return Ok(None) };
    let (firsts, lasts): (Vec<i64>, Vec<i64>) = (stored(row, "gap_firsts")?, stored(row, "gap_lasts")?);
    let gaps: Vec<_> = firsts
        .into_iter()
        .zip(lasts)
        .map(|(first, last)| OffsetRange::new(Offset(first), Offset(last)))
        .collect();
    let pending = stored::<_, bool>(row, "taken")? || !gaps.is_empty();
    Ok(Some(Head { offset: Offset(head), gaps, pending }))
}

/// A limit at which one row never fits, because each message weighs at least [`MESSAGE_BYTES`] and the first may fit
/// whatever it weighs. Fewer rows are the whole range.
pub(super) fn rows_max(bound: FetchBound) -> i64 {
    i64::try_from(bound.bytes_max / MESSAGE_BYTES).expect("a 64-bit number divided fits 63 bits") + 2
}

/// Whether payload and headers of a row are so large that they were not read with it.
fn is_large(row: &Row) -> Result<(bool, bool)> {
    let (payload, headers) = (stored::<_, Option<&[u8]>>(row, 4)?, stored::<_, Option<&str>>(row, 6)?);
    Ok((payload.is_none(), headers == Some("")))
}

/// Bytes of payload and headers, by offset, of the messages that were not read whole with their rows.
async fn sizes_of(source: Source<'_>, topic: TopicId, rows: &[Row]) -> Result<HashMap<i64, (usize, usize)>> {
    let mut offsets: Vec<i64> = Vec::new();
    for row in rows {
        if is_large(row)? != (false, false) {
            offsets.push(stored(row, 0)?);
        }
    }
    if offsets.is_empty() {
        return Ok(HashMap::new());
    }
    let params: [&(dyn ToSql + Sync); 2] = [&topic.0, &offsets];
    let rows = source.connections.query("fetching messages", &source.statements.log_sizes, &params).await?;
    let bytes = |bytes: i64| usize::try_from(bytes).unwrap_or_default();
    rows.iter()
        .map(|row| {
            let (payload, headers): (i32, Option<i64>) = (stored(row, 1)?, stored(row, 2)?);
            Ok((stored(row, 0)?, (bytes(payload.into()), bytes(headers.unwrap_or_default()))))
        })
        .collect()
}

/// Moves the value read for a message into the message. False if it is gone: the message was removed meanwhile, and is
/// missing as if removed before.
fn put<T>(field: &mut T, offset: i64, large: &Large, read: &mut HashMap<i64, T>) -> bool {
    if large.binary_search_by_key(&offset, |(large, _)| *large).is_err() {
        return true;
    }
    read.remove(&offset).map(|value| *field = value).is_some()
}

/// The values that one query reads, at least one, and the rest.
fn split(large: &Large) -> (&Large, &Large) {
    let mut total = 0;
    let together = large.iter().take_while(|(_, bytes)| {
        total += bytes;
        total <= READ_AT_ONCE_BYTES_MAX
    });
    large.split_at(together.count().max(1))
}

fn offsets_of(large: &Large) -> Vec<i64> {
    large.iter().map(|(offset, _)| *offset).collect()
}

/// Payloads that were not read with their rows, by offset. A message never changes, so it may be read in pieces.
async fn read_payloads(source: Source<'_>, topic: TopicId, large: &Large) -> Result<HashMap<i64, Bytes>> {
    let mut payloads: HashMap<i64, Bytes> = HashMap::new();
    let mut rest = large;
    while let [(_, bytes), ..] = rest {
        let (now, later) = split(rest);
        rest = later;
        let offsets = offsets_of(now);
        let mut read: HashMap<i64, BytesMut> =
            now.iter().map(|(offset, bytes)| (*offset, BytesMut::with_capacity(*bytes))).collect();
        for from in (0..*bytes).step_by(READ_AT_ONCE_BYTES_MAX) {
            let (from, count) = (sql_size(from + 1), sql_size(READ_AT_ONCE_BYTES_MAX));
            let params: [&(dyn ToSql + Sync); 4] = [&topic.0, &offsets, &from, &count];
            let sql = &source.statements.log_payload;
            for row in &source.connections.query("fetching messages", sql, &params).await? {
                let (offset, piece): (i64, &[u8]) = (stored(row, 0)?, stored(row, 1)?);
                read.entry(offset).or_default().extend_from_slice(piece);
            }
        }
        for (offset, bytes) in now {
            let payload = read.remove(offset).unwrap_or_default();
            if payload.len() == *bytes {
                payloads.insert(*offset, payload.freeze());
            }
        }
    }
    Ok(payloads)
}

/// Headers that were not read with their rows, by offset.
async fn read_headers(source: Source<'_>, topic: TopicId, large: &Large) -> Result<HashMap<i64, Headers>> {
    let mut headers: HashMap<i64, Headers> = HashMap::new();
    let mut rest = large;
    while !rest.is_empty() {
        let (now, later) = split(rest);
        rest = later;
        let params: [&(dyn ToSql + Sync); 2] = [&topic.0, &offsets_of(now)];
        let sql = &source.statements.log_headers;
        for row in &source.connections.query("fetching messages", sql, &params).await? {
            headers.insert(stored(row, 0)?, headers_of(stored(row, 1)?)?);
        }
    }
    Ok(headers)
}

fn sql_size(bytes: usize) -> i32 {
    i32::try_from(bytes).expect("a payload is far smaller")
}

/// Columns are read by position: finding them by name for each row would cost more than the rest.
fn message_of(row: &Row) -> Result<Message> {
    // Empty if too large to be read with the row.
    let (payload, headers): (Option<&[u8]>, Option<&str>) = (stored(row, 4)?, stored(row, 6)?);
    Ok(Message {
        offset: Offset(stored(row, 0)?),
        message_id: stored(row, 1)?,
        key: stored(row, 2)?,
        message_type: stored(row, 3)?,
        payload: Bytes::copy_from_slice(payload.unwrap_or_default()),
        content_type: stored(row, 5)?,
        headers: headers_of(headers.filter(|json| !json.is_empty()))?,
        correlation_id: stored(row, 7)?,
        created_at: stored(row, 8)?,
    })
}

pub(super) fn headers_of(json: Option<&str>) -> Result<Headers> {
    let Some(json) = json else { return Ok(Headers::new()) };
    serde_json::from_str(json).map_err(|error| {
        Error::with_source(
            ErrorKind::Database,
            "stored headers are not an object of strings; run `headwater doctor`",
            error,
        )
    })
}
