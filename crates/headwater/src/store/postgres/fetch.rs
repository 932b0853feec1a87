//! Reading messages and dead letters.

use bytes::Bytes;
use tokio_postgres::Row;

use super::PostgresStore;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{DeadLetter, OffsetRange};
use crate::message::{Headers, Message, Offset};
use crate::subscription::SubscriptionId;
use crate::topic::TopicId;

pub(super) async fn fetch(store: &PostgresStore, topic: TopicId, range: OffsetRange) -> Result<Vec<Message>> {
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&topic.0, &range.first.0, &range.last.0];
    let rows = store.connections.query("fetching messages", &store.statements.fetch, &params).await?;
    rows.iter().map(message_of).collect()
}

/// Columns are read by position: a look-up by name per column and row would cost more than the rest.
fn message_of(row: &Row) -> Result<Message> {
    Ok(Message {
        offset: Offset(row.get(0)),
        message_id: row.get(1),
        key: row.get(2),
        message_type: row.get(3),
        payload: Bytes::copy_from_slice(row.get(4)),
        content_type: row.get(5),
        headers: headers_of(row.get(6))?,
        correlation_id: row.get(7),
        created_at: row.get(8),
    })
}

fn headers_of(json: Option<&str>) -> Result<Headers> {
    let Some(json) = json else { return Ok(Headers::new()) };
    serde_json::from_str(json).map_err(|error| {
        Error::with_source(
            ErrorKind::Database,
            "stored headers are not an object of strings; run `headwater doctor`",
            error,
        )
    })
}

pub(super) async fn dead_letters(
    store: &PostgresStore,
    subscription: SubscriptionId,
    limit: u32,
) -> Result<Vec<DeadLetter>> {
    let rows = store
        .connections
        .query("listing dead letters", &store.statements.dead_letters, &[&subscription.0, &i64::from(limit)])
        .await?;
    rows.iter().map(dead_letter_of).collect()
}

fn dead_letter_of(row: &Row) -> Result<DeadLetter> {
    let attempts: i32 = row.get("attempts");
    Ok(DeadLetter {
        dead_letter_id: row.get("dead_letter_id"),
        subscription_id: SubscriptionId(row.get("subscription_id")),
        offset: Offset(row.get("message_offset")),
        message_id: row.get("message_id"),
        key: row.get("key"),
        message_type: row.get("message_type"),
        payload: Bytes::copy_from_slice(row.get("payload")),
        content_type: row.get("content_type"),
        headers: headers_of(row.get("headers"))?,
        error: row.get("error"),
        attempts: u32::try_from(attempts).expect("attempts count up from 1"),
        buried_at: row.get("buried_at"),
    })
}
