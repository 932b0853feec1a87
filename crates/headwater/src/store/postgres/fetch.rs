//! Reading messages.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::PostgresStore;
use super::time::stored;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::OffsetRange;
use crate::message::{Headers, Message, Offset};
use crate::store::{FetchBound, Fetched, Weighing};
use crate::topic::TopicId;

/// Payloads up to this size come with their row. Of larger ones the row brings the size alone, which PostgreSQL knows
/// without reading them, and they are read only if they fit.
const READ_WITH_ROW_BYTES_MAX: i32 = 8 * 1024;
/// How many bytes of large payloads one query reads. The client holds a query's whole answer beside what is made of it, and a
/// connection keeps the buffer it once needed.
const READ_AT_ONCE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The messages of a range, by offset, as far as they fit.
pub(super) async fn fetch(
    store: &PostgresStore,
    topic: TopicId,
    range: OffsetRange,
    bound: FetchBound,
) -> Result<Fetched> {
    let params: [&(dyn ToSql + Sync); 4] =
        [&topic.0, &range.first.0, &range.last.0, &READ_WITH_ROW_BYTES_MAX];
    let rows = store.connections.query("fetching messages", &store.statements.fetch, &params).await?;
    let mut weighing = Weighing::new(bound);
    let mut fetched = Fetched::default();
    // Offset and size of each payload that did not come with its row.
    let mut large: Vec<(i64, usize)> = Vec::new();
    for row in &rows {
        let message = message_of(row)?;
        let bytes: i32 = stored(row, 9)?;
        let bytes = usize::try_from(bytes).unwrap_or_default();
        if !weighing.fits(message.weight() - message.payload.len() + bytes) {
            fetched.left = Some(OffsetRange::new(message.offset, range.last));
            break;
        }
        if message.payload.len() < bytes {
            large.push((message.offset.0, bytes));
        }
        fetched.messages.push(message);
    }
    drop(rows);
    let mut payloads = read_large(store, topic, &large).await?;
    if !large.is_empty() {
        // One that is gone was removed meanwhile: it is a hole now, as if it had been removed before.
        let there = |offset: i64| large.binary_search_by_key(&offset, |(large, _)| *large).is_err();
        fetched.messages.retain_mut(|message| match payloads.remove(&message.offset.0) {
            Some(payload) => {
                message.payload = payload;
                true
            }
            None => there(message.offset.0),
        });
    }
    Ok(fetched)
}

/// Payloads that did not come with their rows, by offset. A message never changes, so it may be read in pieces.
async fn read_large(
    store: &PostgresStore,
    topic: TopicId,
    large: &[(i64, usize)],
) -> Result<HashMap<i64, Bytes>> {
    let mut payloads: HashMap<i64, Bytes> = HashMap::new();
    let mut rest = large;
    while let [(_, bytes), ..] = rest {
        let mut total = 0;
        let together = rest.iter().take_while(|(_, bytes)| {
            total += bytes;
            total <= READ_AT_ONCE_BYTES_MAX
        });
        let (now, later) = rest.split_at(together.count().max(1));
        rest = later;
        let offsets: Vec<i64> = now.iter().map(|(offset, _)| *offset).collect();
        let mut read: HashMap<i64, BytesMut> =
            now.iter().map(|(offset, bytes)| (*offset, BytesMut::with_capacity(*bytes))).collect();
        for from in (0..*bytes).step_by(READ_AT_ONCE_BYTES_MAX) {
            let (from, count) = (sql_size(from + 1), sql_size(READ_AT_ONCE_BYTES_MAX));
            let params: [&(dyn ToSql + Sync); 4] = [&topic.0, &offsets, &from, &count];
            let sql = &store.statements.fetch_payload;
            for row in &store.connections.query("fetching messages", sql, &params).await? {
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

fn sql_size(bytes: usize) -> i32 {
    i32::try_from(bytes).expect("a payload is far smaller")
}

/// Columns are read by position: a look-up by name per column and row would cost more than the rest.
fn message_of(row: &Row) -> Result<Message> {
    let payload: Option<&[u8]> = stored(row, 4)?;
    Ok(Message {
        offset: Offset(stored(row, 0)?),
        message_id: stored(row, 1)?,
        key: stored(row, 2)?,
        message_type: stored(row, 3)?,
        payload: Bytes::copy_from_slice(payload.unwrap_or_default()),
        content_type: stored(row, 5)?,
        headers: headers_of(stored(row, 6)?)?,
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
