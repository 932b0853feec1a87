//! Bare `COPY … (FORMAT binary)`: the limit of publishing on PostgreSQL.
//!
//! The rows are those Headwater itself stored: a batch is read back once in COPY's own format, and each further batch
//! is the same bytes with new offsets. So the table, its columns and its content are equal whatever the schema is.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, TryStreamExt};
use tokio_postgres::Client;

use super::super::measure::{Rate, run_tasks};
use crate::server::connect;

const TABLE: &str = "lab_copy";
/// COPY's signature, flags and extension length.
const HEADER_BYTES: usize = 19;

/// A template batch and the table it is copied to.
#[derive(Clone, Debug)]
pub(crate) struct BareCopy {
    url: String,
    rows: Arc<Vec<u8>>,
    /// The position of each row's offset in `rows`.
    offsets_at: Arc<Vec<usize>>,
    next: Arc<AtomicI64>,
}

impl BareCopy {
    /// Takes the first `batch` messages of `table` as the template and creates an equal, empty table.
    pub(crate) async fn like(url: &str, table: &str, batch: usize) -> Result<Self> {
        let client = connect(url).await?;
        client
            .batch_execute(&format!(
                "CREATE TABLE {TABLE} (LIKE {table} INCLUDING DEFAULTS INCLUDING STORAGE);
                 ALTER TABLE {TABLE} ADD PRIMARY KEY (topic_id, message_offset)"
            ))
            .await?;
        let place = client
            .query_one(
                "SELECT count(*) FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped
                    AND attnum < (SELECT attnum FROM pg_attribute WHERE attrelid = $1::text::regclass AND attname = 'message_offset')",
                &[&TABLE],
            )
            .await?;
        let place = usize::try_from(place.get::<_, i64>(0))?;
        let copied = client
            .copy_out(&format!("COPY (SELECT * FROM {table} LIMIT {batch}) TO STDOUT (FORMAT binary)"))
            .await?;
        let chunks: Vec<Bytes> = copied.try_collect().await?;
        let rows = chunks.concat();
        let offsets_at = find_fields(&rows, place)?;
        ensure!(offsets_at.len() == batch, "the template has {} rows, {batch} were wanted", offsets_at.len());
        Ok(BareCopy {
            url: url.to_owned(),
            rows: Arc::new(rows),
            offsets_at: Arc::new(offsets_at),
            next: Arc::new(1.into()),
        })
    }

    /// Copies batches in a loop on each connection, each batch its own transaction.
    pub(crate) async fn run(&self, connections: usize, during: Duration) -> Result<Rate> {
        let clients =
            futures_util::future::try_join_all((0..connections).map(|_| connect(&self.url))).await?;
        clients[0].batch_execute(&format!("TRUNCATE {TABLE}")).await?;
        let clients = Arc::new(clients);
        let this = self.clone();
        run_tasks(connections, during, move |task, run| {
            let (clients, this) = (Arc::clone(&clients), this.clone());
            async move {
                while run.goes_on() {
                    run.count(this.copy_one(&clients[task]).await?);
                }
                Ok(())
            }
        })
        .await
    }

    async fn copy_one(&self, client: &Client) -> Result<usize> {
        let count = self.offsets_at.len();
        let first = self.next.fetch_add(i64::try_from(count)?, Ordering::Relaxed);
        let mut rows = BytesMut::from(self.rows.as_slice());
        for (at, offset) in self.offsets_at.iter().zip(first..) {
            rows[*at..*at + 8].copy_from_slice(&offset.to_be_bytes());
        }
        let sink = client.copy_in::<_, Bytes>(&format!("COPY {TABLE} FROM STDIN (FORMAT binary)")).await?;
        futures_util::pin_mut!(sink);
        sink.send(rows.freeze()).await?;
        let copied = sink.finish().await?;
        ensure!(copied == count as u64, "copied {copied} of {count}");
        Ok(count)
    }
}

/// The position of field number `place` in every row: a row is a count of fields, a field is a length and its bytes.
fn find_fields(rows: &[u8], place: usize) -> Result<Vec<usize>> {
    let (mut at, mut found) = (HEADER_BYTES, Vec::new());
    loop {
        let fields = i16::from_be_bytes(take(rows, at)?);
        at += 2;
        if fields < 0 {
            return Ok(found);
        }
        for field in 0..usize::try_from(fields)? {
            let length = i32::from_be_bytes(take(rows, at)?);
            at += 4;
            if field == place {
                ensure!(length == 8, "an offset of {length} bytes");
                found.push(at);
            }
            // A length of -1 means NULL and has no bytes.
            at += usize::try_from(length).unwrap_or(0);
        }
    }
}

fn take<const N: usize>(rows: &[u8], at: usize) -> Result<[u8; N]> {
    rows.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).context("the COPY data ends early")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_nulls() {
        let mut rows = vec![0; HEADER_BYTES];
        for offset in [7i64, 8] {
            rows.extend(3i16.to_be_bytes());
            rows.extend((-1i32).to_be_bytes());
            rows.extend(8i32.to_be_bytes());
            rows.extend(offset.to_be_bytes());
            rows.extend(2i32.to_be_bytes());
            rows.extend(b"ab");
        }
        rows.extend((-1i16).to_be_bytes());
        let found = find_fields(&rows, 1).unwrap();
        let offsets: Vec<i64> =
            found.iter().map(|at| i64::from_be_bytes(take(&rows, *at).unwrap())).collect();
        assert_eq!(offsets, [7, 8]);
        assert!(find_fields(&rows[..rows.len() - 2], 1).is_err());
    }
}
