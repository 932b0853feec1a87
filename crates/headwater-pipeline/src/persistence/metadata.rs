//! The persistence of metadata: the file and its announcement, once per run, in the same order as ticks.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::announce;
use crate::backoff::{Backoff, wait_out};
use crate::contracts::{MetadataInfo, RunInfo, SimulationMetadata};
use crate::error::{Error, Result};
use crate::follow::{Follower, ServeRun, check_run, serve_topic};
use crate::health::{Counter, Health};
use crate::resource::{
    BatchStorageWrite, Bind, Delivery, Handler, MetadataPersistenceBindings, RunDirectory, TopicWriter,
    Verdict,
};
use crate::service::{Service, Stop};

/// The options of the persistence of metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetadataPersistenceOptions {
    /// The only run to write; without it the newest one is followed.
    pub run_id: Option<String>,
    /// How often metadata that is refused is tried before it becomes a dead letter.
    pub batch_attempts: u32,
}

impl Default for MetadataPersistenceOptions {
    fn default() -> Self {
        MetadataPersistenceOptions { run_id: None, batch_attempts: 3 }
    }
}

/// The service that writes metadata.
pub struct MetadataPersistence {
    follower: Follower,
    bind: Arc<dyn Bind<MetadataPersistenceBindings>>,
    batch_attempts: u32,
    health: Arc<Health>,
}

impl MetadataPersistence {
    /// A service that is not running yet. Refuses a blank name and options that cannot work.
    pub fn new(
        name: &str,
        directory: Arc<dyn RunDirectory>,
        bind: Arc<dyn Bind<MetadataPersistenceBindings>>,
        options: MetadataPersistenceOptions,
    ) -> Result<Self> {
        if options.batch_attempts == 0 {
            return Err(Error::invalid(format!("service {name}: batch_attempts is 0, expected at least 1")));
        }
        let health = Arc::new(Health::of_service(name));
        let follower = Follower::new(name, directory, options.run_id, Arc::clone(&health))?;
        Ok(MetadataPersistence { follower, bind, batch_attempts: options.batch_attempts, health })
    }
}

#[async_trait]
impl ServeRun for MetadataPersistence {
    async fn serve_run(&self, run: &RunInfo, stop: &mut Stop) -> Result<()> {
        let open = || self.bind.bind(run);
        let Some(bindings) = wait_out("opening of bindings", &self.health, stop, open).await? else {
            return Ok(());
        };
        let MetadataPersistenceBindings { metadata, storage, announcements, closer } = bindings;
        let handler = MetadataHandler {
            run_id: run.run_id.clone(),
            storage,
            topic: announcements,
            batch_attempts: self.batch_attempts,
            health: Arc::clone(&self.health),
            stop: stop.clone(),
        };
        let served =
            serve_topic(&self.follower, &run.run_id, &*metadata, Arc::new(handler), None, stop).await;
        closer.close().await;
        served
    }
}

#[async_trait]
impl Service for MetadataPersistence {
    async fn run(&self, stop: Stop) -> Result<()> {
        self.follower.serve_runs(self, stop).await
    }

    fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }
}

/// Writes and announces the metadata of one run. The message is acked after both, so a crash repeats them: the same content under the
/// same key, announced under the same dedup key.
struct MetadataHandler {
    run_id: String,
    storage: Arc<dyn BatchStorageWrite>,
    topic: Arc<dyn TopicWriter<MetadataInfo>>,
    batch_attempts: u32,
    health: Arc<Health>,
    stop: Stop,
}

impl MetadataHandler {
    async fn write(&self, metadata: &SimulationMetadata) -> Result<MetadataInfo> {
        check_run(&self.run_id, &metadata.run_id, "metadata")?;
        let begun = Instant::now();
        let info = self.storage.write_metadata(metadata).await?;
        self.health.record_write(begun.elapsed());
        Ok(info)
    }
}

#[async_trait]
impl Handler<SimulationMetadata> for MetadataHandler {
    async fn handle(&self, metadata: SimulationMetadata, delivery: Delivery) -> Verdict {
        let (run, attempt, mut stop) = (&self.run_id, delivery.attempt, self.stop.clone());
        let mut backoff = Backoff::new();
        let info = loop {
            let error = match self.write(&metadata).await {
                Ok(info) => break info,
                Err(error) => error,
            };
            self.health.count(Counter::WriteErrors, 1);
            self.health.record_error(&error, "metadata file");
            tracing::warn!(run, attempt, code = %error.code(), %error, "metadata file not written");
            if error.is_transient() {
                if !backoff.wait(&mut stop).await {
                    return Verdict::GiveBack;
                }
                continue;
            }
            self.health.count(Counter::BatchesFailed, 1);
            let reason = format!("metadata of run {run}: {}: {error}", error.code());
            if attempt < self.batch_attempts {
                return Verdict::Retry(reason);
            }
            self.health.count(Counter::BatchesBuried, 1);
            return Verdict::Bury(reason);
        };
        if !announce(&*self.topic, &info, &info.storage_key, &self.health, &mut stop).await {
            return Verdict::GiveBack;
        }
        self.health.count(Counter::BatchesWritten, 1);
        self.health.count(Counter::BytesWritten, info.stored_bytes);
        tracing::debug!(run, key = info.storage_key, "metadata announced");
        Verdict::Done
    }
}
