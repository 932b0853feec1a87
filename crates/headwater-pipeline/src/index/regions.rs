//! The strategy `regions`: the world cut into tiles, one row per tick and tile that has cells. A small area of a large world is read
//! without the rest. This is the only strategy that decodes cells to store them.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::OnceLock;

use async_trait::async_trait;

use self::tiling::Tiling;
use super::database::{Column, Database, Durability, Kind, OnConflict, Query, RowSize, Table, Upsert};
use super::settings;
use super::single_blob::in_tick;
use super::strategy::{StorageStrategy, StoredTick, StrategySettings};
use crate::cells::{self, Cell, Compression, RAW_BYTES_MAX};
use crate::contracts::TickData;
use crate::error::{Error, ErrorCode, Result};
use crate::world::{Region, World};

mod tiling;

static REGIONS: Table = Table {
    name: "regions",
    columns: &[
        Column { name: "tick", kind: Kind::Natural },
        Column { name: "tile", kind: Kind::Integer },
        Column { name: "cells", kind: Kind::Blob },
    ],
    key_columns: 2,
    indexes: &[],
    on_conflict: OnConflict::Replace,
    rows: RowSize::Long,
    partitionable: false,
};

/// Every tick has a row of this number without cells: a tick whose area is empty differs from one that is not stored.
const MARKER: i64 = -1;
/// An area that needs more statements is read with all tiles of its tick.
const RANGES_MAX: usize = 64;
/// In the table of settings: rows of two tilings would have a cell twice.
const TILE_SIZE: &str = "tile_size";

/// See above.
pub(super) struct Regions {
    /// For a run that has none yet.
    tile_size: u64,
    compression: Compression,
    /// That of the run, once it is known.
    agreed: OnceLock<u64>,
}

impl Regions {
    pub(super) fn new(settings: &StrategySettings) -> Result<Self> {
        if settings.tile_size == 0 {
            return Err(Error::invalid("tile_size 0: at least 1 is expected"));
        }
        Ok(Regions {
            tile_size: settings.tile_size,
            compression: settings.recompress.unwrap_or_default(),
            agreed: OnceLock::new(),
        })
    }

    /// The tiles of the run; `None` if none were ever written.
    async fn tiling(&self, database: &dyn Database, world: &World) -> Result<Option<Tiling>> {
        let agreed = match self.agreed.get() {
            Some(agreed) => *agreed,
            None => match settings::get(database, TILE_SIZE).await? {
                // Not remembered: another process may decide on it at any time.
                None => return Ok(None),
                Some(size) => *self.agreed.get_or_init(|| size),
            },
        };
        Ok(Some(Tiling::new(world, agreed)))
    }
}

#[async_trait]
impl StorageStrategy for Regions {
    async fn create_schema(&self, database: &dyn Database, _: &World) -> Result<()> {
        database.create_tables(&[&REGIONS]).await?;
        let agreed = settings::agree(database, TILE_SIZE, self.tile_size).await?;
        self.agreed.get_or_init(|| agreed);
        Ok(())
    }

    async fn write_ticks(&self, database: &dyn Database, world: &World, ticks: &[TickData]) -> Result<()> {
        let tiling = self.tiling(database, world).await?.ok_or_else(|| {
            Error::permanent(ErrorCode::WriteFailed, "regions: create the schema before ticks are written")
        })?;
        let blobs: Vec<_> = ticks.iter().map(|tick| (tick.tick_number, tick.cells.clone())).collect();
        let compression = self.compression;
        let work = tokio::task::spawn_blocking(move || {
            let mut rows = Upsert::new(&REGIONS, blobs.len());
            for (tick, blob) in blobs {
                rows.push([tick.into(), MARKER.into(), bytes::Bytes::new().into()]);
                for (tile, cells) in cut(&tiling, &blob).map_err(|error| in_tick(tick, &error))? {
                    rows.push([tick.into(), tile.into(), cells::encode(&cells, compression).into()]);
                }
            }
            Ok::<_, Error>(rows)
        });
        let ended =
            |error| Error::transient(ErrorCode::WriteFailed, format!("cutting into tiles ended: {error}"));
        let rows = work.await.map_err(ended)??;
        database.upsert(vec![rows], Durability::Synced).await
    }

    async fn tick_range(&self, database: &dyn Database) -> Result<Option<(i64, i64)>> {
        let first =
            database.query(Query::new("SELECT tick FROM @regions ORDER BY tick, tile LIMIT 1")).await?;
        let last = "SELECT tick FROM @regions ORDER BY tick DESC, tile DESC LIMIT 1";
        match (first.first(), database.query(Query::new(last)).await?.first()) {
            (Some(first), Some(last)) => Ok(Some((first.integer(0)?, last.integer(0)?))),
            _ => Ok(None),
        }
    }

    async fn tick_count(&self, database: &dyn Database) -> Result<u64> {
        let query = Query::new("SELECT count(*) FROM @regions WHERE tile = $1").bind(MARKER);
        let rows = database.query(query).await?;
        rows.first().map_or(Ok(0), |row| row.integer(0).map(i64::unsigned_abs))
    }

    async fn ticks(
        &self,
        database: &dyn Database,
        range: RangeInclusive<i64>,
        limit: u64,
    ) -> Result<Vec<i64>> {
        let sql =
            "SELECT tick FROM @regions WHERE tick BETWEEN $1 AND $2 AND tile = $3 ORDER BY tick LIMIT $4";
        let query = Query::new(sql).bind_range(&range).bind(MARKER).bind(limit.cast_signed());
        database.query(query).await?.iter().map(|row| row.integer(0)).collect()
    }

    async fn read(
        &self,
        database: &dyn Database,
        world: &World,
        range: RangeInclusive<i64>,
        area: Option<&Region>,
        limit: u64,
    ) -> Result<Vec<StoredTick>> {
        let Some(tiling) = self.tiling(database, world).await? else { return Ok(Vec::new()) };
        let ranges = match area.and_then(|area| tiling.ranges(area, RANGES_MAX)) {
            Some(ranges) => ranges,
            None => vec![0..=i64::MAX],
        };
        // The marker and the tiles of a tick are of one transaction: with the former, the latter are there.
        let ticks = self.ticks(database, range, limit).await?;
        let mut stored = Vec::with_capacity(ticks.len());
        for tick in ticks {
            let mut blobs = Vec::new();
            for tiles in &ranges {
                let sql =
                    "SELECT cells FROM @regions WHERE tick = $1 AND tile BETWEEN $2 AND $3 ORDER BY tile";
                let rows = database.query(Query::new(sql).bind(tick).bind_range(tiles)).await?;
                for row in rows {
                    blobs.push(row.blob(0)?);
                }
            }
            stored.push(StoredTick { tick, blobs });
        }
        Ok(stored)
    }
}

/// The cells of each tile, flat indexes rising.
fn cut(tiling: &Tiling, blob: &[u8]) -> Result<BTreeMap<i64, Vec<Cell>>> {
    let mut tiles: BTreeMap<i64, Vec<Cell>> = BTreeMap::new();
    let mut outside = None;
    cells::visit(blob, RAW_BYTES_MAX, |cell| match tiling.tile_of(cell.flat_index) {
        Ok(tile) => {
            tiles.entry(tile).or_default().push(cell);
            ControlFlow::Continue(())
        }
        Err(error) => {
            outside = Some(Error::permanent(ErrorCode::WriteFailed, error));
            ControlFlow::Break(())
        }
    })?;
    outside.map_or(Ok(tiles), Err)
}
