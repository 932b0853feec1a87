//! Cells of ticks: written by the configured strategy, read from whichever strategy stored them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use async_trait::async_trait;

use super::Index;
use super::select::{self, Change, Selection};
use super::strategy::StoredTick;
use crate::cells::{Cell, RAW_BYTES_MAX};
use crate::contracts::TickData;
use crate::error::{Error, ErrorCode, Result};
use crate::resource::{EnvironmentWrite, MetadataRead};
use crate::world::{Region, World};

/// Ticks that are read at a time where a query walks over many.
const PAGE_TICKS: u64 = 32;

#[async_trait]
impl EnvironmentWrite for Index {
    async fn create_schema(&self, world: &World) -> Result<()> {
        self.writing_strategy().create_schema(self.database(), world).await?;
        let agreed = self.known_world().get_or_init(|| world.clone());
        if agreed != world {
            let text = format!("run {} has the world {agreed}, not {world}", self.run_id());
            return Err(Error::permanent(ErrorCode::SchemaSetupFailed, text));
        }
        Ok(())
    }

    async fn write_ticks(&self, ticks: &[TickData]) -> Result<()> {
        self.check_run(ticks)?;
        if ticks.is_empty() {
            return Ok(());
        }
        let world = self.known_world().get().ok_or_else(|| {
            let text = format!("index of run {}: create the schema before ticks are written", self.run_id());
            Error::permanent(ErrorCode::WriteFailed, text)
        })?;
        self.writing_strategy().write_ticks(self.database(), world, ticks).await
    }
}

impl Index {
    /// The world of the run; `None` until its metadata is indexed.
    pub async fn world(&self) -> Result<Option<World>> {
        if let Some(known) = self.known_world().get() {
            return Ok(Some(known.clone()));
        }
        let Some(metadata) = self.metadata(self.run_id()).await? else { return Ok(None) };
        let world = World::from_metadata(&metadata)
            .map_err(|error| Error::permanent(ErrorCode::DecodeFailed, error))?;
        Ok(Some(self.known_world().get_or_init(|| world).clone()))
    }

    /// The first and the last tick whose cells are indexed. Between them ticks may be missing while indexers compete.
    pub async fn tick_range(&self) -> Result<Option<(i64, i64)>> {
        let mut all: Option<(i64, i64)> = None;
        for strategy in self.strategies() {
            if let Some((first, last)) = strategy.tick_range(self.database()).await? {
                all = Some(all.map_or((first, last), |range| (range.0.min(first), range.1.max(last))));
            }
        }
        Ok(all)
    }

    /// How many ticks have their cells indexed. Reads all of them: for now and then.
    pub async fn tick_count(&self) -> Result<u64> {
        let mut count = 0;
        for strategy in self.strategies() {
            count += strategy.tick_count(self.database()).await?;
        }
        Ok(count)
    }

    /// The first `limit` ticks of a range whose cells are indexed, rising.
    pub async fn ticks(&self, range: RangeInclusive<i64>, limit: u64) -> Result<Vec<i64>> {
        let mut all = Vec::new();
        for strategy in self.strategies() {
            all.extend(strategy.ticks(self.database(), range.clone(), limit).await?);
        }
        all.sort_unstable();
        all.dedup();
        all.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(all)
    }

    /// The blobs of a tick, with an area at least those that have its cells; `None` if the tick is not indexed.
    pub async fn stored(&self, tick: i64, area: Option<&Region>) -> Result<Option<StoredTick>> {
        Ok(self.stored_within(tick..=tick, area).await?.pop())
    }

    /// The first ticks of a range with their blobs, at most [`PAGE_TICKS`].
    pub(crate) async fn stored_within(
        &self,
        range: RangeInclusive<i64>,
        area: Option<&Region>,
    ) -> Result<Vec<StoredTick>> {
        let Some(world) = self.world().await? else { return Ok(Vec::new()) };
        let mut all = BTreeMap::new();
        for strategy in self.strategies() {
            let found = strategy.read(self.database(), &world, range.clone(), area, PAGE_TICKS).await?;
            for stored in found {
                // A tick that was written again after the strategy changed is the same in both.
                all.entry(stored.tick).or_insert(stored);
            }
            if *range.start() == *range.end() && !all.is_empty() {
                break;
            }
        }
        let mut first: Vec<StoredTick> = all.into_values().collect();
        first.truncate(PAGE_TICKS as usize);
        Ok(first)
    }

    /// The wanted cells of a tick, flat indexes rising; `None` if the tick is not indexed.
    pub async fn cells(&self, tick: i64, selection: &Selection) -> Result<Option<Vec<Cell>>> {
        let Some(stored) = self.stored(tick, selection.area.as_ref()).await? else { return Ok(None) };
        let world = self.world_of_stored().await?;
        select::select(&stored, &world, selection, RAW_BYTES_MAX).map(Some)
    }

    /// One cell of a tick; the outer `None` if the tick is not indexed, the inner one if the cell is empty.
    pub async fn cell(&self, tick: i64, flat_index: u64) -> Result<Option<Option<Cell>>> {
        let Some(world) = self.world().await? else { return Ok(None) };
        let Some(stored) = self.stored(tick, Some(&place(&world, flat_index)?)).await? else {
            return Ok(None);
        };
        select::find(&stored, flat_index, RAW_BYTES_MAX).map(Some)
    }

    /// One cell in the first `limit` ticks of a range, rising; `None` where it is empty.
    pub async fn cell_history(
        &self,
        flat_index: u64,
        range: RangeInclusive<i64>,
        limit: u64,
    ) -> Result<Vec<(i64, Option<Cell>)>> {
        let Some(world) = self.world().await? else { return Ok(Vec::new()) };
        let area = place(&world, flat_index)?;
        let mut history = Vec::new();
        let mut rest = range;
        while (history.len() as u64) < limit && !rest.is_empty() {
            let page = self.stored_within(rest.clone(), Some(&area)).await?;
            let Some(last) = page.last().map(|stored| stored.tick) else { break };
            for stored in page {
                history.push((stored.tick, select::find(&stored, flat_index, RAW_BYTES_MAX)?));
            }
            let Some(next) = last.checked_add(1) else { break };
            rest = next..=*rest.end();
        }
        history.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(history)
    }

    /// What differs between two ticks; `None` if one of them is not indexed.
    pub async fn difference(
        &self,
        before: i64,
        after: i64,
        selection: &Selection,
    ) -> Result<Option<Vec<Change>>> {
        let (Some(before), Some(after)) =
            (self.cells(before, selection).await?, self.cells(after, selection).await?)
        else {
            return Ok(None);
        };
        Ok(Some(select::difference(&before, &after)))
    }

    async fn world_of_stored(&self) -> Result<World> {
        self.world().await?.ok_or_else(|| {
            Error::transient(ErrorCode::ReadFailed, format!("index of run {}: no metadata", self.run_id()))
        })
    }
}

/// The region of one cell.
pub(crate) fn place(world: &World, flat_index: u64) -> Result<Region> {
    let coordinates = world.coordinates(flat_index)?;
    let bounds: Vec<(u64, u64)> = coordinates.iter().map(|value| (*value, *value)).collect();
    world.region(&bounds)
}
