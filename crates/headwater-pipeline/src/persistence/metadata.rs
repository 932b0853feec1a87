//! The persistence of metadata: the file and its announcement, once per run, in the same order as ticks.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::announce;
use crate::contracts::{MetadataInfo, SimulationMetadata};
use crate::error::Result;
use crate::follow::check_run;
use crate::health::{Counter, Health};
use crate::metadata::{MetadataService, ServeMetadata, Work};
use crate::resource::{
    Backlog, BatchStorageWrite, Closer, MetadataPersistenceBindings, TopicReader, TopicWriter,
};
use crate::service::Stop;

/// The service that writes metadata.
pub type MetadataPersistence = MetadataService<MetadataPersistenceBindings>;

#[async_trait]
impl ServeMetadata for MetadataPersistenceBindings {
    type Message = SimulationMetadata;

    async fn prepare(&self, _run_id: &str) -> Result<()> {
        Ok(())
    }

    fn upstream(&self) -> (&dyn TopicReader<SimulationMetadata>, Option<&dyn Backlog>) {
        (&*self.metadata, None)
    }

    fn work(&self, run_id: &str, health: &Arc<Health>, stop: &Stop) -> Box<dyn Work<SimulationMetadata>> {
        Box::new(WriteMetadata {
            run_id: run_id.to_owned(),
            storage: Arc::clone(&self.storage),
            topic: Arc::clone(&self.announcements),
            health: Arc::clone(health),
            stop: stop.clone(),
        })
    }

    fn into_closer(self) -> Box<dyn Closer> {
        self.closer
    }
}

/// Writes and announces the metadata of one run. The message is acked after both, so a crash repeats them: the same content under the
/// same key, announced under the same dedup key.
struct WriteMetadata {
    run_id: String,
    storage: Arc<dyn BatchStorageWrite>,
    topic: Arc<dyn TopicWriter<MetadataInfo>>,
    health: Arc<Health>,
    stop: Stop,
}

impl WriteMetadata {
    async fn write(&self, metadata: &SimulationMetadata) -> Result<MetadataInfo> {
        check_run(&self.run_id, &metadata.run_id, "metadata")?;
        let begun = Instant::now();
        let info = self.storage.write_metadata(metadata).await?;
        self.health.record_write(begun.elapsed());
        Ok(info)
    }
}

#[async_trait]
impl Work<SimulationMetadata> for WriteMetadata {
    fn name(&self, _message: &SimulationMetadata) -> String {
        format!("metadata of run {}", self.run_id)
    }

    async fn work(&self, metadata: &SimulationMetadata) -> Result<bool> {
        let written = self.write(metadata).await;
        let info = written.inspect_err(|_| self.health.count(Counter::WriteErrors, 1))?;
        if !announce(&*self.topic, &info, &info.storage_key, &self.health, &mut self.stop.clone()).await {
            return Ok(false);
        }
        self.health.count(Counter::BatchesWritten, 1);
        self.health.count(Counter::BytesWritten, info.stored_bytes);
        tracing::debug!(run = self.run_id, key = info.storage_key, "metadata announced");
        Ok(true)
    }
}
