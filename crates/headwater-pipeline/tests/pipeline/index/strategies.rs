//! Strategies: those of the program, one of a user, and changes of the configuration in the middle of a run.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use headwater_pipeline::cells::{self, Cell, Compression};
use headwater_pipeline::contracts::TickData;
use headwater_pipeline::index::database::{
    Column, Database, Durability, Kind, OnConflict, Query, Row, RowSize, Table, Upsert,
};
use headwater_pipeline::index::select::Selection;
use headwater_pipeline::index::{Index, IndexOptions, StorageStrategy, StoredTick, Strategies};
use headwater_pipeline::resource::EnvironmentWrite;
use headwater_pipeline::world::{Region, Topology, World};
use headwater_pipeline::{ErrorCode, Result};

use super::{Place, cell, create_all, with_strategy};

on_both! {
    strategy_switched
    tile_size_of_the_run_counts
    a_cell_outside_the_world_is_refused_by_regions
    custom_strategy
    compression_none_and_levels
    codec_changed_mid_run
    storage_size_vs_row_per_cell
    area_query
}

async fn strategy_switched(place: Place) {
    let before = place.prepared(&with_strategy("single_blob")).await;
    let cells_of = |n: i64| vec![cell(n as u64, n), cell(5_000 + n as u64, 1)];
    let tick = |n| place.tick(n, &cells_of(n));
    before.write_ticks(&[tick(1), tick(2), tick(3)]).await.unwrap();
    let after = place.prepared(&with_strategy("regions")).await;
    // Tick 3 comes again after the switch.
    after.write_ticks(&[tick(3), tick(4), tick(5)]).await.unwrap();
    for index in [before, after] {
        assert_eq!(index.tick_range().await.unwrap(), Some((1, 5)));
        assert_eq!(index.ticks(0..=9, 10).await.unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(index.ticks(0..=9, 4).await.unwrap(), [1, 2, 3, 4]);
        for n in 1..=5 {
            assert_eq!(index.cells(n, &Selection::default()).await.unwrap().unwrap(), cells_of(n), "{n}");
        }
        let history = index.cell_history(5_003, 0..=9, 10).await.unwrap();
        let found: Vec<i64> =
            history.iter().filter(|(_, cell)| cell.is_some()).map(|(tick, _)| *tick).collect();
        assert_eq!((history.len(), found), (5, vec![3]));
    }
    place.leave().await;
}

async fn tile_size_of_the_run_counts(place: Place) {
    let options = |tile_size| IndexOptions { tile_size, ..with_strategy("regions") };
    let first = place.prepared(&options(16)).await;
    let cells = [cell(0, 1), cell(9_999, 2)];
    first.write_ticks(&[place.tick(1, &cells)]).await.unwrap();
    // Another configuration later: tiles of two sizes would have cells twice.
    let second = place.prepared(&options(50)).await;
    second.write_ticks(&[place.tick(1, &cells), place.tick(2, &cells)]).await.unwrap();
    for n in [1, 2] {
        assert_eq!(second.cells(n, &Selection::default()).await.unwrap().unwrap(), cells);
    }
    place.leave().await;
}

async fn a_cell_outside_the_world_is_refused_by_regions(place: Place) {
    let index = place.prepared(&with_strategy("regions")).await;
    let error =
        index.write_ticks(&[place.tick(1, &[]), place.tick(2, &[cell(10_000, 1)])]).await.unwrap_err();
    assert!(error.to_string().starts_with("tick 2: flat index 10000: "), "{error}");
    assert_eq!((error.code(), error.is_transient()), (ErrorCode::WriteFailed, false));
    assert_eq!(index.tick_range().await.unwrap(), None);
    place.leave().await;
}

/// A strategy of a user: a row per cell, which the documents began with.
struct RowPerCell;

static CELL_ROWS: Table = Table {
    name: "cell_rows",
    columns: &[
        Column { name: "tick", kind: Kind::Natural },
        Column { name: "flat_index", kind: Kind::Integer },
        Column { name: "molecule_type", kind: Kind::Natural },
        Column { name: "molecule_value", kind: Kind::Integer },
        Column { name: "owner_id", kind: Kind::Natural },
    ],
    key_columns: 2,
    indexes: &[],
    on_conflict: OnConflict::Replace,
    rows: RowSize::Short,
    partitionable: false,
};

#[async_trait]
impl StorageStrategy for RowPerCell {
    async fn create_schema(&self, database: &dyn Database, _: &World) -> Result<()> {
        database.create_tables(&[&CELL_ROWS]).await
    }

    async fn write_ticks(&self, database: &dyn Database, _: &World, ticks: &[TickData]) -> Result<()> {
        let mut rows = Upsert::new(&CELL_ROWS, 0);
        for tick in ticks {
            // So that a tick without cells is there too.
            rows.push([tick.tick_number.into(), (-1).into(), 0.into(), 0.into(), 0.into()]);
            for cell in cells::decode(&tick.cells)? {
                let numbers = [cell.flat_index as i64, i64::from(cell.molecule_type), cell.molecule_value];
                let [place, kind, value] = numbers.map(Into::into);
                rows.push([tick.tick_number.into(), place, kind, value, (cell.owner_id as i64).into()]);
            }
        }
        database.upsert(vec![rows], Durability::Synced).await
    }

    async fn tick_range(&self, database: &dyn Database) -> Result<Option<(i64, i64)>> {
        let ticks = self.ticks(database, 0..=i64::MAX, i64::MAX as u64).await?;
        Ok(ticks.first().copied().zip(ticks.last().copied()))
    }

    async fn ticks(
        &self,
        database: &dyn Database,
        range: RangeInclusive<i64>,
        limit: u64,
    ) -> Result<Vec<i64>> {
        let sql = "SELECT DISTINCT tick FROM @cell_rows WHERE tick BETWEEN $1 AND $2 ORDER BY tick LIMIT $3";
        let rows = database.query(Query::new(sql).bind_range(&range).bind(limit as i64)).await?;
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
        let mut stored = Vec::new();
        for tick in self.ticks(database, range, limit).await? {
            let sql = "SELECT flat_index, molecule_type, molecule_value, owner_id FROM @cell_rows
                       WHERE tick = $1 AND flat_index >= 0 ORDER BY flat_index";
            let rows = database.query(Query::new(sql).bind(tick)).await?;
            let cell = |row: &Row| {
                Ok(Cell {
                    flat_index: row.integer(0)? as u64,
                    molecule_type: row.integer(1)? as u32,
                    molecule_value: row.integer(2)?,
                    owner_id: row.integer(3)? as u64,
                    marker: 0,
                })
            };
            let read = rows.iter().map(cell).collect::<Result<Vec<_>>>()?;
            stored.push(StoredTick { tick, blobs: vec![cells::encode(&read, Compression::NONE)] });
        }
        Ok(stored)
    }
}

fn with_row_per_cell() -> IndexOptions {
    let strategies = Strategies::default().with("row_per_cell", |_| Ok(Arc::new(RowPerCell)));
    IndexOptions { strategy: "row_per_cell".into(), strategies, ..IndexOptions::default() }
}

async fn custom_strategy(place: Place) {
    let index = place.prepared(&with_row_per_cell()).await;
    let ticks = [place.tick(1, &[cell(1, 1), cell(7, -7)]), place.tick(2, &[])];
    index.write_ticks(&ticks).await.unwrap();
    index.write_ticks(&ticks).await.unwrap();
    assert_eq!(index.tick_range().await.unwrap(), Some((1, 2)));
    assert_eq!(index.cells(1, &Selection::default()).await.unwrap().unwrap(), [cell(1, 1), cell(7, -7)]);
    assert_eq!(index.cell(1, 7).await.unwrap(), Some(Some(cell(7, -7))));
    assert_eq!(index.cells(2, &Selection::default()).await.unwrap().unwrap(), []);
    let error = index.write_ticks(&[place.tick(-1, &[])]).await.unwrap_err();
    assert!(!error.is_transient());
    place.leave().await;
}

#[test]
fn unknown_strategy_refused() {
    let error = Index::open("sqlite:here", "run_x", &with_strategy("rows")).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidConfiguration);
    assert_eq!(error.to_string(), "strategy \"rows\" is not known: regions, single_blob are allowed");
}

async fn compression_none_and_levels(place: Place) {
    let cells = occupied(100, 100, 10, 1);
    let original = place.tick(0, &cells);
    let settings = [
        None,
        Some(Compression::NONE),
        Some(Compression::zstd(1).unwrap()),
        Some(Compression::zstd(19).unwrap()),
    ];
    let mut sizes = Vec::new();
    for (recompress, n) in settings.into_iter().zip(0..) {
        let index = place.prepared(&IndexOptions { recompress, ..IndexOptions::default() }).await;
        index.write_ticks(&[TickData { tick_number: n, ..original.clone() }]).await.unwrap();
        let blob = index.stored(n, None).await.unwrap().unwrap().blobs.remove(0);
        assert_eq!(cells::decode(&blob).unwrap(), cells);
        sizes.push((cells::codec_name(&blob).unwrap().unwrap(), blob.len()));
    }
    assert_eq!(sizes[0], ("zstd", original.cells.len()), "unchanged by default");
    assert_eq!(sizes.iter().map(|(codec, _)| *codec).collect::<Vec<_>>(), ["zstd", "none", "zstd", "zstd"]);
    assert!(sizes[1].1 > sizes[2].1 && sizes[2].1 > sizes[3].1, "{sizes:?}");
    place.leave().await;
}

async fn codec_changed_mid_run(place: Place) {
    let cells = occupied(100, 100, 10, 2);
    for (recompress, n) in [(Some(Compression::NONE), 1), (Some(Compression::default()), 2), (None, 3)] {
        let index = place.prepared(&IndexOptions { recompress, ..IndexOptions::default() }).await;
        index.write_ticks(&[place.tick(n, &cells)]).await.unwrap();
    }
    let index = place.prepared(&IndexOptions::default()).await;
    for n in 1..=3 {
        assert_eq!(index.cells(n, &Selection::default()).await.unwrap().unwrap(), cells, "{n}");
    }
    assert_eq!(index.difference(1, 2, &Selection::default()).await.unwrap(), Some(vec![]));
    place.leave().await;
}

async fn storage_size_vs_row_per_cell(place: Place) {
    let ticks: Vec<TickData> = (0..20).map(|n| place.tick(n, &occupied(100, 100, 10, n as u64))).collect();
    let blobs = place.prepared(&IndexOptions::default()).await;
    let empty = blobs.bytes_stored().await.unwrap();
    blobs.write_ticks(&ticks).await.unwrap();
    let as_blobs = blobs.bytes_stored().await.unwrap() - empty;
    let rows = place.prepared(&with_row_per_cell()).await;
    rows.write_ticks(&ticks).await.unwrap();
    let as_rows = rows.bytes_stored().await.unwrap() - as_blobs - empty;
    println!("20 ticks of 1,000 cells: {as_blobs} bytes as blobs, {as_rows} as rows per cell");
    assert!(as_rows > 3 * as_blobs, "{as_rows} bytes as rows, {as_blobs} as blobs");
    place.leave().await;
}

async fn area_query(place: Place) {
    let world = World::new(&[2000, 2000], Topology::Torus).unwrap();
    let everything = occupied(2000, 2000, 1, 3);
    for (strategy, n) in [("single_blob", 1), ("regions", 2)] {
        let index = place.index(&with_strategy(strategy));
        create_all(&index, &world).await.unwrap();
        index.write_ticks(&[place.tick(n, &everything)]).await.unwrap();
        for bounds in [[(70, 89), (130, 149)], [(1990, 9), (1995, 14)], [(0, 1999), (5, 5)]] {
            let area = world.region(&bounds).unwrap();
            let wanted: Vec<Cell> = everything
                .iter()
                .filter(|cell| world.region_has(&area, cell.flat_index).unwrap())
                .copied()
                .collect();
            assert!(!wanted.is_empty());
            let selection = Selection { area: Some(area.clone()), ..Selection::default() };
            assert_eq!(index.cells(n, &selection).await.unwrap().unwrap(), wanted, "{strategy} {bounds:?}");
            let blobs = index.stored(n, Some(&area)).await.unwrap().unwrap().blobs.len();
            match strategy {
                "regions" => assert!(blobs <= 32, "{blobs} of 1,024 tiles are read"),
                _ => assert_eq!(blobs, 1),
            }
        }
    }
    place.leave().await;
}

/// About so many percent of a world's cells, the same for the same seed.
fn occupied(rows: u64, columns: u64, percent: u64, seed: u64) -> Vec<Cell> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut cells = Vec::new();
    for flat_index in 0..rows * columns {
        if next() % 100 < percent {
            let owner_id = next() % 20;
            let (molecule_type, molecule_value) = (1 + (next() % 4) as u32, (next() % 16) as i64);
            cells.push(Cell { flat_index, molecule_type, molecule_value, owner_id, marker: 0 });
        }
    }
    cells
}
