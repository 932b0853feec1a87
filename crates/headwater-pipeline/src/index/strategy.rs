//! How cells of ticks are stored: strategies by name, those of the program beside those of its users.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::database::Database;
use super::regions::Regions;
use super::single_blob::SingleBlob;
use crate::cells::{self, Compression};
use crate::contracts::TickData;
use crate::error::{Error, Result};
use crate::world::{Region, World};

/// The strategy without configuration.
pub const STRATEGY_DEFAULT: &str = "single_blob";
/// The edge of a tile without configuration, for the strategy `regions`.
pub const TILE_SIZE_DEFAULT: u64 = 64;

/// Stores cells of ticks and reads them again, in tables of its own.
///
/// The database is that of one run. A tick does not change once it is stored, so a reader may meet any part of a run but never a part of a
/// tick: all rows of a tick are written in one transaction.
#[async_trait]
pub trait StorageStrategy: Send + Sync {
    /// Creates what is missing; any number of processes may call it at once.
    async fn create_schema(&self, database: &dyn Database, world: &World) -> Result<()>;

    /// Writes ticks with one call of [`Database::upsert`], which is one durable transaction. A tick without cells is stored too. Ticks
    /// that are there already change nothing.
    async fn write_ticks(&self, database: &dyn Database, world: &World, ticks: &[TickData]) -> Result<()>;

    /// The first and the last tick that are stored.
    async fn tick_range(&self, database: &dyn Database) -> Result<Option<(i64, i64)>>;

    /// How many ticks are stored. Counts a list of them unless a strategy knows better.
    async fn tick_count(&self, database: &dyn Database) -> Result<u64> {
        Ok(self.ticks(database, 0..=i64::MAX, i64::MAX.unsigned_abs()).await?.len() as u64)
    }

    /// The first `limit` ticks of a range that are stored, rising.
    async fn ticks(
        &self,
        database: &dyn Database,
        range: RangeInclusive<i64>,
        limit: u64,
    ) -> Result<Vec<i64>>;

    /// The first `limit` ticks of a range with the blobs that have their cells; with an area, at least the blobs that have cells of it.
    async fn read(
        &self,
        database: &dyn Database,
        world: &World,
        range: RangeInclusive<i64>,
        area: Option<&Region>,
        limit: u64,
    ) -> Result<Vec<StoredTick>>;
}

/// A tick as it is stored: blobs in the form of [`cells::encode`], in which a cell is at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTick {
    /// The tick.
    pub tick: i64,
    /// None of them, or empty ones, for a tick without cells.
    pub blobs: Vec<Bytes>,
}

impl StoredTick {
    /// How many bytes decoding it decompresses, read from the first bytes of its blobs.
    pub fn raw_bytes(&self) -> Result<u64> {
        self.blobs.iter().map(|blob| cells::raw_bytes(blob)).sum()
    }
}

/// What a strategy is created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrategySettings {
    /// Cells along the edge of a tile, for strategies that cut the world.
    pub tile_size: u64,
    /// How blobs are compressed again; `None` stores a tick's bytes unchanged where that is possible.
    pub recompress: Option<Compression>,
}

impl Default for StrategySettings {
    fn default() -> Self {
        StrategySettings { tile_size: TILE_SIZE_DEFAULT, recompress: None }
    }
}

type Factory = Arc<dyn Fn(&StrategySettings) -> Result<Arc<dyn StorageStrategy>> + Send + Sync>;

/// The strategies that a program knows, by name.
#[derive(Clone)]
pub struct Strategies(BTreeMap<String, Factory>);

impl Default for Strategies {
    /// `single_blob` and `regions`.
    fn default() -> Self {
        Strategies(BTreeMap::new())
            .with(STRATEGY_DEFAULT, |settings| Ok(Arc::new(SingleBlob::new(settings))))
            .with("regions", |settings| Ok(Arc::new(Regions::new(settings)?)))
    }
}

impl Strategies {
    /// Adds a strategy, or replaces the one of that name.
    #[must_use]
    pub fn with(
        mut self,
        name: &str,
        factory: impl Fn(&StrategySettings) -> Result<Arc<dyn StorageStrategy>> + Send + Sync + 'static,
    ) -> Self {
        self.0.insert(name.to_owned(), Arc::new(factory));
        self
    }

    /// The names, in alphabetical order.
    pub fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    /// Refuses a name that is not known, with those that are.
    pub fn check(&self, name: &str) -> Result<()> {
        match self.0.contains_key(name) {
            true => Ok(()),
            false => {
                let known = self.names().join(", ");
                Err(Error::invalid(format!("strategy {name:?} is not known: {known} are allowed")))
            }
        }
    }

    /// All of them, the named one first: it writes, and what another one wrote before a change of the configuration stays readable.
    pub(super) fn create(
        &self,
        name: &str,
        settings: &StrategySettings,
    ) -> Result<Vec<Arc<dyn StorageStrategy>>> {
        self.check(name)?;
        let named = self.0.iter().filter(|(known, _)| *known == name);
        let others = self.0.iter().filter(|(known, _)| *known != name);
        named.chain(others).map(|(_, factory)| factory(settings)).collect()
    }
}

impl fmt::Debug for Strategies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_strategy_refused() {
        let own = Strategies::default().with("mine", |settings| Ok(Arc::new(SingleBlob::new(settings))));
        let error = own.check("blobs").unwrap_err();
        assert_eq!(
            error.to_string(),
            "strategy \"blobs\" is not known: mine, regions, single_blob are allowed"
        );
        assert!(!error.is_transient());
        own.check("mine").unwrap();
    }

    #[test]
    fn a_tile_without_cells_is_refused() {
        let settings = StrategySettings { tile_size: 0, ..StrategySettings::default() };
        let error = Strategies::default().create("regions", &settings).err().unwrap();
        assert_eq!(error.to_string(), "tile_size 0: at least 1 is expected");
    }
}
