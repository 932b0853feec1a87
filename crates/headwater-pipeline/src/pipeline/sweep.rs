//! Claim checks are swept by the processes that persist ticks: at their start and then every quarter of an hour, of all runs, also of those
//! that have ended.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinHandle;

use super::Shared;
use super::bind::claim_checks;
use crate::claim_check::{ClaimChecks, Sweeper, Swept};
use crate::config::{Config, Resource, ServiceOptions};
use crate::contracts::RunInfo;
use crate::error::Result;
use crate::service::{Stop, Stopper};

/// A file is kept for at least an hour: sweeping more often would find little.
const SWEEP_EVERY: Duration = Duration::from_secs(900);
/// How long a stop waits for a sweep. It may be ended at any moment: what it has removed had no message.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// The task that sweeps. Ended by [`Sweeping::stop`].
pub(super) struct Sweeping {
    stopper: Stopper,
    task: JoinHandle<()>,
}

impl Sweeping {
    /// Sweeps while the process runs, if it persists ticks.
    pub(super) fn start(shared: &Arc<Shared>) -> Option<Self> {
        let persists = |config: &Config| {
            config.services.iter().any(|service| matches!(service.options, ServiceOptions::Persistence(_)))
        };
        if !persists(&shared.config) {
            return None;
        }
        let (stopper, mut stop) = Stop::new();
        let shared = Arc::clone(shared);
        let task = tokio::spawn(async move {
            loop {
                sweep_all(&shared, &stop).await;
                tokio::select! {
                    () = stop.requested() => return,
                    () = tokio::time::sleep(SWEEP_EVERY) => {}
                }
            }
        });
        Some(Sweeping { stopper, task })
    }

    pub(super) async fn stop(mut self) {
        self.stopper.stop();
        if tokio::time::timeout(STOP_GRACE, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

async fn sweep_all(shared: &Arc<Shared>, stop: &Stop) {
    let runs = match shared.runs.list().await {
        Ok(runs) => runs,
        Err(error) => {
            tracing::warn!(%error, "claim checks not swept: runs not read");
            return;
        }
    };
    for run in runs {
        if stop.is_requested() {
            return;
        }
        match sweep_run(shared, &run).await {
            Ok(Some(Swept { young, held, removed })) => {
                tracing::debug!(run = run.run_id, young, held, removed, "claim checks swept");
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(run = run.run_id, %error, "claim checks not swept"),
        }
    }
}

/// Removes the files of a run's payloads whose message is gone. `None` if it has no such files, or no topics.
pub(super) async fn sweep_run(shared: &Arc<Shared>, run: &RunInfo) -> Result<Option<Swept>> {
    let Some(checks) = checks_of(shared, &run.run_id)? else { return Ok(None) };
    // Before its store is opened: most runs have none.
    if !checks.has_files().await? {
        return Ok(None);
    }
    let Some(store) = shared.runs.stores().inspect(run).await? else { return Ok(None) };
    let swept = Sweeper::new(store.clone(), checks).sweep(Timestamp::now()).await;
    let _ = store.close().await;
    swept.map(Some)
}

/// The claim checks of a run. Their folder is the same for all its queues.
fn checks_of(shared: &Shared, run_id: &str) -> Result<Option<ClaimChecks>> {
    let queues = shared.config.resources.iter().filter_map(|config| match &config.resource {
        Resource::Queue(queue) => Some(queue),
        _ => None,
    });
    for queue in queues {
        if let Some(checks) = claim_checks(shared, queue, run_id)? {
            return Ok(Some(checks));
        }
    }
    Ok(None)
}
