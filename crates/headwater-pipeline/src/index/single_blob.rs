//! The strategy `single_blob`: one row per tick with all its cells, in the bytes that the source made.

use std::ops::RangeInclusive;

use async_trait::async_trait;

use super::database::{Column, Database, Durability, Kind, OnConflict, Query, RowSize, Table, Upsert};
use super::strategy::{StorageStrategy, StoredTick, StrategySettings};
use crate::cells::{self, Compression};
use crate::contracts::TickData;
use crate::error::{Error, ErrorCode, Result};
use crate::world::{Region, World};

/// One row per tick serves worlds of 1 to 8 dimensions: positions are in the blob.
pub(super) static TICKS: Table = Table {
    name: "environment_ticks",
    columns: &[Column { name: "tick", kind: Kind::Natural }, Column { name: "cells", kind: Kind::Blob }],
    key_columns: 1,
    indexes: &[],
    on_conflict: OnConflict::Replace,
    rows: RowSize::Long,
    partitionable: true,
};

/// See above.
pub(super) struct SingleBlob {
    recompress: Option<Compression>,
}

impl SingleBlob {
    pub(super) fn new(settings: &StrategySettings) -> Self {
        SingleBlob { recompress: settings.recompress }
    }
}

#[async_trait]
impl StorageStrategy for SingleBlob {
    async fn create_schema(&self, database: &dyn Database, _: &World) -> Result<()> {
        database.create_tables(&[&TICKS]).await
    }

    async fn write_ticks(&self, database: &dyn Database, _: &World, ticks: &[TickData]) -> Result<()> {
        let mut rows = Upsert::new(&TICKS, ticks.len());
        match self.recompress {
            // The bytes of the file, shared and not copied: cells are not decoded to be stored.
            None => {
                for tick in ticks {
                    rows.push([tick.tick_number.into(), tick.cells.clone().into()]);
                }
            }
            Some(compression) => {
                for (tick, blob) in recompressed(ticks, compression).await? {
                    rows.push([tick.into(), blob.into()]);
                }
            }
        }
        database.upsert(vec![rows], Durability::Synced).await
    }

    async fn tick_range(&self, database: &dyn Database) -> Result<Option<(i64, i64)>> {
        let first =
            database.query(Query::new("SELECT tick FROM @environment_ticks ORDER BY tick LIMIT 1")).await?;
        let last = database
            .query(Query::new("SELECT tick FROM @environment_ticks ORDER BY tick DESC LIMIT 1"))
            .await?;
        match (first.first(), last.first()) {
            (Some(first), Some(last)) => Ok(Some((first.integer(0)?, last.integer(0)?))),
            _ => Ok(None),
        }
    }

    async fn tick_count(&self, database: &dyn Database) -> Result<u64> {
        let rows = database.query(Query::new("SELECT count(*) FROM @environment_ticks")).await?;
        rows.first().map_or(Ok(0), |row| row.integer(0).map(i64::unsigned_abs))
    }

    async fn ticks(
        &self,
        database: &dyn Database,
        range: RangeInclusive<i64>,
        limit: u64,
    ) -> Result<Vec<i64>> {
        let sql = "SELECT tick FROM @environment_ticks WHERE tick BETWEEN $1 AND $2 ORDER BY tick LIMIT $3";
        let rows = database.query(Query::new(sql).bind_range(&range).bind(limit.cast_signed())).await?;
        rows.iter().map(|row| row.integer(0)).collect()
    }

    async fn read(
        &self,
        database: &dyn Database,
        _: &World,
        range: RangeInclusive<i64>,
        _: Option<&Region>,
        limit: u64,
    ) -> Result<Vec<StoredTick>> {
        let sql =
            "SELECT tick, cells FROM @environment_ticks WHERE tick BETWEEN $1 AND $2 ORDER BY tick LIMIT $3";
        let rows = database.query(Query::new(sql).bind_range(&range).bind(limit.cast_signed())).await?;
        rows.iter().map(|row| Ok(StoredTick { tick: row.integer(0)?, blobs: vec![row.blob(1)?] })).collect()
    }
}

/// The cells under another codec or level. A blob does not name its level, so each is decoded.
async fn recompressed(ticks: &[TickData], compression: Compression) -> Result<Vec<(i64, bytes::Bytes)>> {
    let blobs: Vec<_> = ticks.iter().map(|tick| (tick.tick_number, tick.cells.clone())).collect();
    let work = tokio::task::spawn_blocking(move || {
        let recompress = |(tick, blob): (i64, bytes::Bytes)| {
            let cells = cells::decode(&blob).map_err(|error| in_tick(tick, &error))?;
            Ok((tick, cells::encode(&cells, compression)))
        };
        blobs.into_iter().map(recompress).collect()
    });
    work.await
        .map_err(|error| Error::transient(ErrorCode::WriteFailed, format!("recompression ended: {error}")))?
}

/// The same error with the tick that it is about.
pub(super) fn in_tick(tick: i64, error: &Error) -> Error {
    Error::permanent(error.code(), format!("tick {tick}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::cells::Cell;
    use crate::index::database::{PoolFigures, Row, Value};
    use crate::world::Topology;

    /// Remembers what was written, transaction by transaction.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<(Vec<Upsert>, Durability)>>);

    #[async_trait]
    impl Database for Recorder {
        async fn create_tables(&self, _: &[&'static Table]) -> Result<()> {
            Ok(())
        }

        async fn upsert(&self, writes: Vec<Upsert>, durability: Durability) -> Result<()> {
            self.0.lock().unwrap().push((writes, durability));
            Ok(())
        }

        async fn query(&self, _: Query) -> Result<Vec<Row>> {
            Ok(Vec::new())
        }

        fn pool(&self) -> PoolFigures {
            PoolFigures::default()
        }

        async fn bytes_stored(&self) -> Result<u64> {
            Ok(0)
        }

        async fn remove(&self) -> Result<()> {
            Ok(())
        }

        async fn close(&self) {}
    }

    /// The only transaction of a flush of ticks with so many cells.
    async fn flushed(counts: &[u64]) -> Vec<(Value, Value)> {
        let cell = |flat_index| Cell { flat_index, molecule_type: 1, ..Cell::default() };
        let ticks: Vec<TickData> = counts
            .iter()
            .zip(0..)
            .map(|(count, tick_number)| {
                let cells: Vec<Cell> = (0..*count).map(cell).collect();
                let cells = cells::encode(&cells, Compression::default());
                TickData { tick_number, cell_count: *count, cells, ..TickData::default() }
            })
            .collect();
        let (database, world) = (Recorder::default(), World::new(&[100], Topology::Torus).unwrap());
        SingleBlob { recompress: None }.write_ticks(&database, &world, &ticks).await.unwrap();
        let mut transactions = database.0.into_inner().unwrap();
        assert_eq!(transactions.len(), 1, "one write");
        let (writes, durability) = transactions.remove(0);
        assert_eq!((writes.len(), durability), (1, Durability::Synced));
        let rows: Vec<_> = writes[0].rows().map(|row| (row[0].clone(), row[1].clone())).collect();
        // The very bytes of the ticks: shared, not copied.
        for (tick, (_, blob)) in ticks.iter().zip(&rows) {
            let Value::Blob(blob) = blob else { panic!("{blob:?}") };
            assert_eq!((blob.as_ptr(), blob.len()), (tick.cells.as_ptr(), tick.cells.len()));
        }
        rows
    }

    #[tokio::test]
    async fn flush_single_tick_one_write() {
        assert_eq!(flushed(&[50]).await.len(), 1);
    }

    #[tokio::test]
    async fn flush_three_ticks_one_write() {
        let rows = flushed(&[50, 75, 60]).await;
        assert_eq!(rows.iter().map(|row| row.0.clone()).collect::<Vec<_>>(), [0.into(), 1.into(), 2.into()]);
    }

    #[tokio::test]
    async fn flush_empty_tick() {
        assert_eq!(flushed(&[0]).await, [(0.into(), bytes::Bytes::new().into())]);
    }

    #[tokio::test]
    async fn flush_mixed_four_ticks() {
        let rows = flushed(&[5, 0, 7, 0]).await;
        let is_empty: Vec<bool> = rows.iter().map(|row| row.1 == bytes::Bytes::new().into()).collect();
        assert_eq!(is_empty, [false, true, false, true]);
    }
}
