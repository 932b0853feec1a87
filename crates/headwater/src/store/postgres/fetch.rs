//! Reading messages.

use bytes::Bytes;
use tokio_postgres::Row;

use super::PostgresStore;
use super::time::stored;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::OffsetRange;
use crate::message::{Headers, Message, Offset};
use crate::topic::TopicId;

pub(super) async fn fetch(store: &PostgresStore, topic: TopicId, range: OffsetRange) -> Result<Vec<Message>> {
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&topic.0, &range.first.0, &range.last.0];
    let rows = store.connections.query("fetching messages", &store.statements.fetch, &params).await?;
    rows.iter().map(message_of).collect()
}

/// Columns are read by position: a look-up by name per column and row would cost more than the rest.
fn message_of(row: &Row) -> Result<Message> {
    Ok(Message {
        offset: Offset(stored(row, 0)?),
        message_id: stored(row, 1)?,
        key: stored(row, 2)?,
        message_type: stored(row, 3)?,
        payload: Bytes::copy_from_slice(stored(row, 4)?),
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
