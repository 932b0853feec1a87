//! The metadata indexer: the announced metadata of a run into the index, once per run.
//!
//! It waits as long as the run does. What fails for a time is waited out; a damaged file, or metadata that is already there with other
//! content, is recorded, retried and buried.

use std::sync::Arc;

use async_trait::async_trait;

use crate::contracts::MetadataInfo;
use crate::error::{Error, ErrorCode, Result};
use crate::follow::check_run;
use crate::health::{Counter, Health};
use crate::metadata::{MetadataService, ServeMetadata, Work};
use crate::resource::{
    Backlog, BatchStorageRead, Closer, MetadataIndexerBindings, MetadataWrite, TopicReader,
};
use crate::service::Stop;

/// The service that writes metadata into the index.
pub type MetadataIndexer = MetadataService<MetadataIndexerBindings>;

#[async_trait]
impl ServeMetadata for MetadataIndexerBindings {
    type Message = MetadataInfo;

    async fn prepare(&self, run_id: &str) -> Result<()> {
        self.index.create_schema().await.map_err(|error| match error.is_transient() {
            true => error,
            false => {
                let text = format!("schema of run {run_id} not prepared: {error}");
                Error::permanent(ErrorCode::SchemaSetupFailed, text)
            }
        })?;
        tracing::info!(run = run_id, "schema ready");
        Ok(())
    }

    fn upstream(&self) -> (&dyn TopicReader<MetadataInfo>, Option<&dyn Backlog>) {
        (&*self.announcements, self.upstream.as_deref())
    }

    fn work(&self, run_id: &str, health: &Arc<Health>, _stop: &Stop) -> Box<dyn Work<MetadataInfo>> {
        Box::new(IndexMetadata {
            run_id: run_id.to_owned(),
            storage: Arc::clone(&self.storage),
            index: Arc::clone(&self.index),
            health: Arc::clone(health),
        })
    }

    fn into_closer(self) -> Box<dyn Closer> {
        self.closer
    }
}

/// Indexes the metadata of one run.
struct IndexMetadata {
    run_id: String,
    storage: Arc<dyn BatchStorageRead>,
    index: Arc<dyn MetadataWrite>,
    health: Arc<Health>,
}

#[async_trait]
impl Work<MetadataInfo> for IndexMetadata {
    fn name(&self, info: &MetadataInfo) -> String {
        format!("metadata {}", info.storage_key)
    }

    async fn work(&self, info: &MetadataInfo) -> Result<bool> {
        check_run(&self.run_id, &info.run_id, &self.name(info))?;
        let read = self.storage.read_metadata(info).await;
        let metadata = read.inspect_err(|_| self.health.count(Counter::ReadErrors, 1))?;
        check_run(&self.run_id, &metadata.run_id, &format!("the file {}", info.storage_key))?;
        let written = self.index.insert_metadata(&metadata).await;
        written.inspect_err(|_| self.health.count(Counter::WriteErrors, 1))?;
        self.health.count(Counter::BatchesProcessed, 1);
        Ok(true)
    }
}
