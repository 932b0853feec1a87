//! An index in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::{Faults, lock};
use crate::contracts::{SimulationMetadata, TickData};
use crate::error::{Error, ErrorCode, Result};
use crate::resource::{EnvironmentWrite, IdempotencyTracker, MetadataRead, MetadataWrite, OrganismWrite};
use crate::world::World;

/// An index in memory. Cheap to clone.
#[derive(Clone, Default)]
pub struct MemoryIndex {
    state: Arc<Mutex<State>>,
    /// Of schema preparations.
    pub schema: Faults,
    /// Of writes of ticks and metadata.
    pub writes: Faults,
    /// Of reads of metadata.
    pub metadata_reads: Faults,
    /// Of checks whether a batch is done.
    pub checks: Faults,
    /// Of marks that a batch is done.
    pub marks: Faults,
}

#[derive(Default)]
struct State {
    world: Option<World>,
    metadata: BTreeMap<String, SimulationMetadata>,
    rows: BTreeMap<i64, TickData>,
    flushes: Vec<Vec<i64>>,
    refused: BTreeSet<i64>,
    done: BTreeSet<(String, String)>,
}

impl MemoryIndex {
    /// Stores metadata.
    pub fn set_metadata(&self, metadata: SimulationMetadata) {
        lock(&self.state).metadata.insert(metadata.run_id.clone(), metadata);
    }

    /// Every flush with this tick fails for good from now on.
    pub fn refuse(&self, tick_number: i64) {
        lock(&self.state).refused.insert(tick_number);
    }

    /// The tick numbers in the index.
    pub fn ticks(&self) -> Vec<i64> {
        lock(&self.state).rows.keys().copied().collect()
    }

    /// The cells in the index.
    pub fn cells(&self) -> u64 {
        lock(&self.state).rows.values().map(|tick| tick.cell_count).sum()
    }

    /// The tick numbers of each flush that succeeded.
    pub fn flushes(&self) -> Vec<Vec<i64>> {
        lock(&self.state).flushes.clone()
    }

    /// How many ticks each flush had that succeeded.
    pub fn flush_sizes(&self) -> Vec<usize> {
        lock(&self.state).flushes.iter().map(Vec::len).collect()
    }

    /// The world that the schema was created for.
    pub fn world(&self) -> Option<World> {
        lock(&self.state).world.clone()
    }

    /// The batches that were marked, of all groups.
    pub fn marked(&self) -> Vec<String> {
        lock(&self.state).done.iter().map(|(_, batch_id)| batch_id.clone()).collect()
    }

    async fn write(&self, ticks: &[TickData]) -> Result<()> {
        self.writes.meet().await?;
        let mut state = lock(&self.state);
        if let Some(tick) = ticks.iter().find(|tick| state.refused.contains(&tick.tick_number)) {
            let message = format!("tick {} violates a constraint", tick.tick_number);
            return Err(Error::permanent(ErrorCode::WriteFailed, message));
        }
        state.flushes.push(ticks.iter().map(|tick| tick.tick_number).collect());
        state.rows.extend(ticks.iter().map(|tick| (tick.tick_number, tick.clone())));
        Ok(())
    }
}

#[async_trait]
impl MetadataRead for MemoryIndex {
    async fn metadata(&self, run_id: &str) -> Result<Option<SimulationMetadata>> {
        self.metadata_reads.meet().await?;
        Ok(lock(&self.state).metadata.get(run_id).cloned())
    }
}

#[async_trait]
impl MetadataWrite for MemoryIndex {
    async fn create_schema(&self) -> Result<()> {
        self.schema.meet().await
    }

    async fn insert_metadata(&self, metadata: &SimulationMetadata) -> Result<()> {
        self.writes.meet().await?;
        let mut state = lock(&self.state);
        match state.metadata.get(&metadata.run_id) {
            Some(there) if there != metadata => {
                let message = format!("metadata of run {} is there with other content", metadata.run_id);
                Err(Error::permanent(ErrorCode::WriteFailed, message))
            }
            _ => {
                state.metadata.insert(metadata.run_id.clone(), metadata.clone());
                Ok(())
            }
        }
    }
}

#[async_trait]
impl EnvironmentWrite for MemoryIndex {
    async fn create_schema(&self, world: &World) -> Result<()> {
        self.schema.meet().await?;
        lock(&self.state).world = Some(world.clone());
        Ok(())
    }

    async fn write_ticks(&self, ticks: &[TickData]) -> Result<()> {
        self.write(ticks).await
    }
}

#[async_trait]
impl OrganismWrite for MemoryIndex {
    async fn create_schema(&self) -> Result<()> {
        self.schema.meet().await
    }

    async fn write_organisms(&self, ticks: &[TickData]) -> Result<()> {
        self.write(ticks).await
    }
}

#[async_trait]
impl IdempotencyTracker for MemoryIndex {
    async fn create_schema(&self) -> Result<()> {
        Ok(())
    }

    async fn is_done(&self, group: &str, batch_id: &str) -> Result<bool> {
        self.checks.meet().await?;
        Ok(lock(&self.state).done.contains(&(group.to_owned(), batch_id.to_owned())))
    }

    async fn mark_done(&self, group: &str, batch_id: &str) -> Result<()> {
        self.marks.meet().await?;
        lock(&self.state).done.insert((group.to_owned(), batch_id.to_owned()));
        Ok(())
    }
}
