//! What the index is compared with: the same blobs written by bare SQLite, which is the limit, and a row per cell, which is
//! the obvious way.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use headwater_pipeline::cells::{self, Cell};
use headwater_pipeline::contracts::TickData;
use rusqlite::{Connection, params};

/// A file with the settings of the index: commits wait for the disk.
const SETTINGS: &str = "PRAGMA page_size = 16384; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
    PRAGMA cache_size = -65536; PRAGMA wal_autocheckpoint = 2048;";
/// What a program that knows nothing of pages would use.
const PLAIN_SETTINGS: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;";

/// A file with a row per tick.
pub(super) struct Blobs(Connection);

impl Blobs {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.execute_batch(SETTINGS)?;
        connection.execute_batch("CREATE TABLE ticks (tick INTEGER PRIMARY KEY, cells BLOB NOT NULL)")?;
        Ok(Blobs(connection))
    }

    /// One transaction; how long it took.
    pub(super) fn insert(&mut self, ticks: &[TickData]) -> Result<Duration> {
        let start = Instant::now();
        let transaction = self.0.transaction()?;
        {
            let mut insert = transaction.prepare_cached("INSERT INTO ticks VALUES (?1, ?2)")?;
            for tick in ticks {
                insert.execute(params![tick.tick_number, &tick.cells[..]])?;
            }
        }
        transaction.commit()?;
        Ok(start.elapsed())
    }
}

/// A file with a row per cell.
pub(super) struct Rows(Connection);

impl Rows {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.execute_batch(PLAIN_SETTINGS)?;
        connection.execute_batch(
            "CREATE TABLE cells (tick INTEGER NOT NULL, flat_index INTEGER NOT NULL, molecule_type INTEGER NOT NULL,
                 molecule_value INTEGER NOT NULL, owner_id INTEGER NOT NULL, marker INTEGER NOT NULL,
                 PRIMARY KEY (tick, flat_index)) WITHOUT ROWID",
        )?;
        Ok(Rows(connection))
    }

    /// One transaction for each tick; how long they took.
    pub(super) fn insert(&mut self, ticks: &[TickData]) -> Result<Duration> {
        let mut took = Duration::ZERO;
        for tick in ticks {
            let cells = cells::decode(&tick.cells)?;
            let start = Instant::now();
            self.insert_cells(tick.tick_number, &cells)?;
            took += start.elapsed();
        }
        Ok(took)
    }

    fn insert_cells(&mut self, tick: i64, cells: &[Cell]) -> Result<()> {
        let transaction = self.0.transaction()?;
        {
            let mut insert =
                transaction.prepare_cached("INSERT INTO cells VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
            for cell in cells {
                let (flat_index, owner_id) = (cell.flat_index.cast_signed(), cell.owner_id.cast_signed());
                let Cell { molecule_type, molecule_value, marker, .. } = cell;
                insert.execute(params![tick, flat_index, molecule_type, molecule_value, owner_id, marker])?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// Closes the file, with everything in it.
    pub(super) fn close(self) -> Result<()> {
        self.0.close().map_err(|(_, error)| error.into())
    }
}

#[cfg(test)]
mod tests {
    use headwater_pipeline::cells::Compression;

    use super::*;

    #[test]
    fn each_cell_is_a_row_and_each_tick_a_blob() {
        let directory = tempfile::tempdir().unwrap();
        let cells: Vec<Cell> =
            (0..7).map(|flat_index| Cell { flat_index, molecule_type: 1, ..Cell::default() }).collect();
        let tick = |tick_number| TickData {
            tick_number,
            cells: cells::encode(&cells, Compression::default()),
            ..TickData::default()
        };
        let mut rows = Rows::create(&directory.path().join("rows")).unwrap();
        rows.insert(&[tick(3), tick(4)]).unwrap();
        let count = |connection: &Connection, table: &str| -> i64 {
            connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
        };
        assert_eq!(count(&rows.0, "cells"), 14);
        let mut blobs = Blobs::create(&directory.path().join("blobs")).unwrap();
        blobs.insert(&[tick(3), tick(4)]).unwrap();
        assert_eq!(count(&blobs.0, "ticks"), 2);
    }
}
