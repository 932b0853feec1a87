//! The indexers of this crate: each prepares its schema and flushes ticks, and nothing more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;

use super::Indexer;
use crate::contracts::{SimulationMetadata, TickData};
use crate::error::{Error, ErrorCode, Result};
use crate::resource::{EnvironmentWrite, OrganismWrite};
use crate::world::World;

/// Writes the cells of each tick. It does not decode them.
pub struct EnvironmentIndexer {
    index: Arc<dyn EnvironmentWrite>,
}

impl EnvironmentIndexer {
    /// Writes into the index of one run.
    pub fn new(index: Arc<dyn EnvironmentWrite>) -> Self {
        EnvironmentIndexer { index }
    }
}

#[async_trait]
impl Indexer for EnvironmentIndexer {
    async fn prepare_schema(&self, metadata: Option<&SimulationMetadata>) -> Result<()> {
        let metadata = metadata.ok_or_else(|| {
            Error::permanent(
                ErrorCode::SchemaSetupFailed,
                "the shape of the world is in the metadata, which is missing",
            )
        })?;
        self.index.create_schema(&World::from_metadata(metadata)?).await
    }

    async fn flush_ticks(&self, ticks: &[TickData]) -> Result<()> {
        match ticks {
            [] => Ok(()),
            ticks => self.index.write_ticks(ticks).await,
        }
    }
}

/// Writes the organisms of each tick.
pub struct OrganismIndexer {
    index: Arc<dyn OrganismWrite>,
}

impl OrganismIndexer {
    /// Writes into the index of one run.
    pub fn new(index: Arc<dyn OrganismWrite>) -> Self {
        OrganismIndexer { index }
    }
}

#[async_trait]
impl Indexer for OrganismIndexer {
    async fn prepare_schema(&self, _: Option<&SimulationMetadata>) -> Result<()> {
        self.index.create_schema().await
    }

    async fn flush_ticks(&self, ticks: &[TickData]) -> Result<()> {
        match ticks {
            [] => Ok(()),
            ticks => self.index.write_organisms(ticks).await,
        }
    }

    fn cells_written(&self, _: &[TickData]) -> u64 {
        0
    }
}

/// Reads and counts: the reference for an indexer of one's own.
#[derive(Debug, Default)]
pub struct DummyIndexer {
    ticks: AtomicU64,
    cells: AtomicU64,
    flushes: AtomicU64,
}

impl DummyIndexer {
    /// Ticks so far; those that came twice count twice.
    pub fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Cells of these ticks.
    pub fn cells(&self) -> u64 {
        self.cells.load(Ordering::Relaxed)
    }

    /// How often it was called.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Indexer for DummyIndexer {
    async fn prepare_schema(&self, _: Option<&SimulationMetadata>) -> Result<()> {
        Ok(())
    }

    async fn flush_ticks(&self, ticks: &[TickData]) -> Result<()> {
        self.ticks.fetch_add(ticks.len() as u64, Ordering::Relaxed);
        self.cells.fetch_add(self.cells_written(ticks), Ordering::Relaxed);
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
