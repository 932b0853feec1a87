//! The metadata indexer: the announced metadata of a run into the index, once per run.
//!
//! It waits as long as the run does. What fails for a time is waited out; a damaged file, or metadata that is already there with other
//! content, is recorded, retried and buried.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::backoff::{Backoff, wait_out};
use crate::contracts::{MetadataInfo, RunInfo};
use crate::error::{Error, ErrorCode, Result};
use crate::follow::{Follower, ServeRun, check_run, serve_topic};
use crate::health::{Counter, Health};
use crate::resource::{
    BatchStorageRead, Bind, Delivery, Handler, MetadataIndexerBindings, MetadataWrite, RunDirectory, Verdict,
};
use crate::service::{Service, Stop};

/// The options of the metadata indexer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetadataIndexerOptions {
    /// The only run to index; without it the newest one is followed.
    pub run_id: Option<String>,
    /// How often metadata that is broken is tried before it becomes a dead letter.
    pub batch_attempts: u32,
}

impl Default for MetadataIndexerOptions {
    fn default() -> Self {
        MetadataIndexerOptions { run_id: None, batch_attempts: 3 }
    }
}

/// The service that writes metadata into the index.
pub struct MetadataIndexer {
    follower: Follower,
    bind: Arc<dyn Bind<MetadataIndexerBindings>>,
    batch_attempts: u32,
    health: Arc<Health>,
}

impl MetadataIndexer {
    /// An indexer that is not running yet. Refuses a blank name and options that cannot work.
    pub fn new(
        name: &str,
        directory: Arc<dyn RunDirectory>,
        bind: Arc<dyn Bind<MetadataIndexerBindings>>,
        options: MetadataIndexerOptions,
    ) -> Result<Self> {
        if options.batch_attempts == 0 {
            return Err(Error::invalid(format!("service {name}: batch_attempts is 0, expected at least 1")));
        }
        let health = Arc::new(Health::of_service(name));
        let follower = Follower::new(name, directory, options.run_id, Arc::clone(&health))?;
        Ok(MetadataIndexer { follower, bind, batch_attempts: options.batch_attempts, health })
    }

    async fn index(&self, run_id: &str, bindings: &MetadataIndexerBindings, stop: &mut Stop) -> Result<()> {
        let create = || bindings.index.create_schema();
        let created = wait_out("schema preparation", &self.health, stop, create).await.map_err(|error| {
            Error::permanent(
                ErrorCode::SchemaSetupFailed,
                format!("schema of run {run_id} not prepared: {error}"),
            )
        })?;
        if created.is_none() {
            return Ok(());
        }
        tracing::info!(run = run_id, "schema ready");
        let handler = MetadataHandler {
            run_id: run_id.to_owned(),
            storage: Arc::clone(&bindings.storage),
            index: Arc::clone(&bindings.index),
            batch_attempts: self.batch_attempts,
            health: Arc::clone(&self.health),
            stop: stop.clone(),
        };
        let (topic, upstream) = (&*bindings.announcements, bindings.upstream.as_deref());
        serve_topic(&self.follower, run_id, topic, Arc::new(handler), upstream, stop).await
    }
}

#[async_trait]
impl ServeRun for MetadataIndexer {
    async fn serve_run(&self, run: &RunInfo, stop: &mut Stop) -> Result<()> {
        let open = || self.bind.bind(run);
        let Some(bindings) = wait_out("opening of bindings", &self.health, stop, open).await? else {
            return Ok(());
        };
        let indexed = self.index(&run.run_id, &bindings, stop).await;
        bindings.closer.close().await;
        indexed
    }
}

#[async_trait]
impl Service for MetadataIndexer {
    async fn run(&self, stop: Stop) -> Result<()> {
        self.follower.serve_runs(self, stop).await
    }

    fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }
}

/// Indexes the metadata of one run.
struct MetadataHandler {
    run_id: String,
    storage: Arc<dyn BatchStorageRead>,
    index: Arc<dyn MetadataWrite>,
    batch_attempts: u32,
    health: Arc<Health>,
    stop: Stop,
}

impl MetadataHandler {
    async fn index(&self, info: &MetadataInfo) -> Result<()> {
        check_run(&self.run_id, &info.run_id, &format!("metadata {}", info.storage_key))?;
        let metadata = self.storage.read_metadata(info).await.inspect_err(|_| {
            self.health.count(Counter::ReadErrors, 1);
        })?;
        check_run(&self.run_id, &metadata.run_id, &format!("the file {}", info.storage_key))?;
        self.index
            .insert_metadata(&metadata)
            .await
            .inspect_err(|_| self.health.count(Counter::WriteErrors, 1))
    }
}

#[async_trait]
impl Handler<MetadataInfo> for MetadataHandler {
    async fn handle(&self, info: MetadataInfo, delivery: Delivery) -> Verdict {
        let (run, key, attempt) = (&self.run_id, &info.storage_key, delivery.attempt);
        tracing::debug!(run, key, attempt, "metadata received");
        let (mut backoff, mut stop) = (Backoff::new(), self.stop.clone());
        loop {
            let Err(error) = self.index(&info).await else {
                self.health.count(Counter::BatchesProcessed, 1);
                return Verdict::Done;
            };
            self.health.record_error(&error, format_args!("metadata {key}"));
            tracing::warn!(run, key, attempt, code = %error.code(), %error, "metadata not indexed");
            if error.is_transient() {
                if !backoff.wait(&mut stop).await {
                    return Verdict::GiveBack;
                }
                continue;
            }
            self.health.count(Counter::BatchesFailed, 1);
            let reason = format!("metadata {key}: {}: {error}", error.code());
            if attempt < self.batch_attempts {
                return Verdict::Retry(reason);
            }
            self.health.count(Counter::BatchesBuried, 1);
            return Verdict::Bury(reason);
        }
    }
}
