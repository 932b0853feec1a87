//! Storage and index as one binding uses them: every call is timed, counted and its error kept, per binding.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;

use super::BindingHandle;
use crate::contracts::{BatchInfo, MetadataInfo, SimulationMetadata, TickData, TickDataBatch};
use crate::error::Result;
use crate::health::{Counter, PoolFigures};
use crate::index::Index;
use crate::resource::{
    BatchStorageRead, BatchStorageWrite, EnvironmentWrite, IdempotencyTracker, MetadataRead, MetadataWrite,
    OrganismWrite,
};
use crate::world::World;

/// A resource with the binding that uses it.
pub(crate) struct Metered<T> {
    inner: T,
    binding: Arc<BindingHandle>,
    /// The connections of the resource, if it has some.
    pool: Option<Index>,
}

impl<T> Metered<T> {
    pub(crate) fn new(inner: T, binding: Arc<BindingHandle>) -> Self {
        Metered { inner, binding, pool: None }
    }

    async fn read<R>(&self, doing: &str, call: impl Future<Output = Result<R>>) -> Result<R> {
        self.record(doing, Counter::ReadErrors, call).await
    }

    /// A write counts in the window of latencies once it is durable.
    async fn write<R>(&self, doing: &str, call: impl Future<Output = Result<R>>) -> Result<R> {
        let begun = Instant::now();
        let written = self.record(doing, Counter::WriteErrors, call).await?;
        self.binding.health().record_write(begun.elapsed());
        Ok(written)
    }

    async fn record<R>(
        &self,
        doing: &str,
        errors: Counter,
        call: impl Future<Output = Result<R>>,
    ) -> Result<R> {
        let answer = self.binding.record(doing, call).await;
        if answer.is_err() {
            self.binding.health().count(errors, 1);
        }
        if let Some(index) = &self.pool {
            self.binding.set_pool(index);
        }
        answer
    }
}

impl BindingHandle {
    /// Records how busy the connections of an index are.
    pub(crate) fn set_pool(&self, index: &Index) {
        let pool = index.pool();
        self.health().set_pool(PoolFigures {
            active: pool.active as u64,
            idle: pool.idle as u64,
            total: pool.total as u64,
            waiting: pool.waiting as u64,
        });
    }
}

impl Metered<Index> {
    pub(crate) fn index(index: &Index, binding: Arc<BindingHandle>) -> Self {
        Metered { inner: index.clone(), binding, pool: Some(index.clone()) }
    }
}

#[async_trait]
impl<T: BatchStorageRead> BatchStorageRead for Metered<T> {
    async fn read_batch(&self, info: &BatchInfo) -> Result<TickDataBatch> {
        self.read("read batch file", self.inner.read_batch(info)).await
    }

    async fn read_metadata(&self, info: &MetadataInfo) -> Result<SimulationMetadata> {
        self.read("read metadata file", self.inner.read_metadata(info)).await
    }
}

#[async_trait]
impl<T: BatchStorageWrite> BatchStorageWrite for Metered<T> {
    async fn write_batch(&self, ticks: Vec<TickData>) -> Result<BatchInfo> {
        let info = self.write("write batch file", self.inner.write_batch(ticks)).await?;
        let health = self.binding.health();
        health.count(Counter::BatchesWritten, 1);
        health.count(Counter::BytesWritten, info.stored_bytes);
        Ok(info)
    }

    async fn write_metadata(&self, metadata: &SimulationMetadata) -> Result<MetadataInfo> {
        let info = self.write("write metadata file", self.inner.write_metadata(metadata)).await?;
        self.binding.health().count(Counter::BytesWritten, info.stored_bytes);
        Ok(info)
    }
}

#[async_trait]
impl<T: MetadataRead> MetadataRead for Metered<T> {
    async fn metadata(&self, run_id: &str) -> Result<Option<SimulationMetadata>> {
        self.read("read metadata", self.inner.metadata(run_id)).await
    }
}

#[async_trait]
impl<T: MetadataWrite> MetadataWrite for Metered<T> {
    async fn create_schema(&self) -> Result<()> {
        self.record("create schema", Counter::WriteErrors, self.inner.create_schema()).await
    }

    async fn insert_metadata(&self, metadata: &SimulationMetadata) -> Result<()> {
        self.write("write metadata", self.inner.insert_metadata(metadata)).await
    }
}

#[async_trait]
impl<T: EnvironmentWrite> EnvironmentWrite for Metered<T> {
    async fn create_schema(&self, world: &World) -> Result<()> {
        self.record("create schema", Counter::WriteErrors, self.inner.create_schema(world)).await
    }

    async fn write_ticks(&self, ticks: &[TickData]) -> Result<()> {
        self.write("write cells", self.inner.write_ticks(ticks)).await?;
        let health = self.binding.health();
        health.count(Counter::BatchesWritten, 1);
        health.count(Counter::TicksFlushed, ticks.len() as u64);
        health.count(Counter::CellsWritten, ticks.iter().map(|tick| tick.cell_count).sum());
        Ok(())
    }
}

#[async_trait]
impl<T: OrganismWrite> OrganismWrite for Metered<T> {
    async fn create_schema(&self) -> Result<()> {
        self.record("create schema", Counter::WriteErrors, self.inner.create_schema()).await
    }

    async fn write_organisms(&self, ticks: &[TickData]) -> Result<()> {
        self.write("write organisms", self.inner.write_organisms(ticks)).await?;
        let health = self.binding.health();
        health.count(Counter::BatchesWritten, 1);
        health.count(Counter::TicksFlushed, ticks.len() as u64);
        Ok(())
    }
}

#[async_trait]
impl<T: IdempotencyTracker> IdempotencyTracker for Metered<T> {
    async fn create_schema(&self) -> Result<()> {
        self.record("create schema", Counter::WriteErrors, self.inner.create_schema()).await
    }

    async fn is_done(&self, group: &str, batch_id: &str) -> Result<bool> {
        self.read("read batch that is done", self.inner.is_done(group, batch_id)).await
    }

    async fn mark_done(&self, group: &str, batch_id: &str) -> Result<()> {
        self.write("mark batch as done", self.inner.mark_done(group, batch_id)).await
    }
}
