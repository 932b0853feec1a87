//! The pipeline of the demo: a Tidepool whose ticks are written to files and indexed while it is watched.
//!
//! A run ends after some minutes and the next one begins; the one before the last is dropped. So the disk has two runs at most.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use headwater_pipeline::config::ServiceOptions;
use headwater_pipeline::manager::Action;
use headwater_pipeline::pipeline::Operator;
use headwater_pipeline::{Config, Pipeline, RunningPipeline};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::traffic::until_stopped;

/// Ticks of a run, and how fast they come: a quarter of an hour.
const TICKS: u64 = 7_200;
const TICKS_PER_SECOND: f64 = 8.0;
/// One in so many ticks is captured, so that a run is small.
const CAPTURED_EVERY: u64 = 4;
/// Runs that stay.
const RUNS_MAX: usize = 2;
/// The source's name in the configuration.
const SOURCE: &str = "source";
/// The pause before a run that could not be dropped or started is tried again.
const PAUSE: Duration = Duration::from_secs(30);

/// A pipeline at work.
pub(super) struct World {
    pipeline: Arc<RunningPipeline>,
    router: Router,
    stop: watch::Sender<bool>,
    renewing: JoinHandle<()>,
}

impl World {
    /// Starts the first run, with everything in this folder.
    pub(super) async fn start(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let pipeline = Arc::new(Pipeline::from_config(config(folder)?).start().await?);
        let router = pipeline.router().await?;
        let operator = Operator::open(config(folder)?).await?;
        let (stop, stopped) = watch::channel(false);
        let renewing = tokio::spawn(renew(Arc::clone(&pipeline), operator, stopped));
        Ok(World { pipeline, router, stop, renewing })
    }

    pub(super) fn router(&self) -> Router {
        self.router.clone()
    }

    pub(super) async fn stop(self) -> Result<()> {
        self.stop.send_replace(true);
        let _ = self.renewing.await;
        // Its other holder has ended with the task.
        if let Some(pipeline) = Arc::into_inner(self.pipeline) {
            pipeline.stop().await?;
        }
        Ok(())
    }
}

/// All services but the query API, which the server has.
fn config(folder: &Path) -> headwater_pipeline::Result<Config> {
    let mut config = Config::default_embedded(folder, Some(TICKS))?;
    config.services.retain(|service| !matches!(service.options, ServiceOptions::Query(_)));
    for service in &mut config.services {
        if let ServiceOptions::Tidepool(source) = &mut service.options {
            source.ticks_per_second = Some(TICKS_PER_SECOND);
            source.publish_ticks_max = 1;
            source.tidepool.sampling_interval = CAPTURED_EVERY;
        }
    }
    Ok(config)
}

/// One run after the other, until stopped.
async fn renew(pipeline: Arc<RunningPipeline>, operator: Operator, mut stopped: watch::Receiver<bool>) {
    loop {
        let done = tokio::select! {
            () = until_stopped(&mut stopped) => break,
            done = next_run(&pipeline, &operator) => done,
        };
        let Err(error) = done else { continue };
        tracing::warn!(%error, "run of the demo not renewed");
        tokio::select! {
            () = until_stopped(&mut stopped) => break,
            () = tokio::time::sleep(PAUSE) => {}
        }
        // A service that gave up is tried again.
        let _ = pipeline.manager().act_on_all(Action::Start).await;
    }
    if let Err(error) = operator.close().await {
        tracing::warn!(%error, "runs of the demo not closed");
    }
}

/// Waits for the end of a run, begins the next one and drops old ones.
async fn next_run(pipeline: &RunningPipeline, operator: &Operator) -> headwater_pipeline::Result<()> {
    pipeline.finished().await?;
    pipeline.manager().act(Action::Start, SOURCE).await?;
    for run in operator.runs().await?.into_iter().skip(RUNS_MAX) {
        operator.drop_run(&run.run_id).await?;
    }
    Ok(())
}
