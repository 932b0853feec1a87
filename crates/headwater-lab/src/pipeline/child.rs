//! One process of a check: an indexer that is measured, or a service that is killed.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use headwater_pipeline::manager::ServiceState;
use headwater_pipeline::{Config, Pipeline};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::indexing::{self, IndexJob};
use crate::check::READY;

/// The job of a process of a check.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "pipeline", rename_all = "snake_case")]
pub(crate) enum PipelineJob {
    /// Indexes the files of a run and prints what that took.
    Index(IndexJob),
    /// Runs one service of a configuration until it ends by itself.
    Serve { config: PathBuf, service: String },
}

/// Runs the job until it is done or the process is asked to end.
pub(crate) async fn run_job(store: &str, job: PipelineJob, mut ending: watch::Receiver<bool>) -> Result<()> {
    match job {
        PipelineJob::Index(job) => {
            println!("{READY}");
            println!("{}", serde_json::to_string(&indexing::index(store, &job).await?)?);
            Ok(())
        }
        PipelineJob::Serve { config, service } => {
            let config = Config::from_file(&config)?.only(&[service])?;
            let pipeline = Pipeline::from_config(config).start().await?;
            println!("{READY}");
            let finished = tokio::select! {
                finished = pipeline.finished() => finished,
                _ = ending.wait_for(|ending| *ending) => Ok(()),
            };
            let stopped = pipeline.stop().await?;
            finished?;
            let failed = stopped.services.iter().find(|status| status.state == ServiceState::Error);
            ensure!(failed.is_none(), "a service failed: {failed:?}");
            Ok(())
        }
    }
}
