//! Runs the maintenance jobs: once by hand, or in the background in one elected process per namespace.

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::jobs::Worker;
use super::stop::StopSignal;
use super::{Job, JobRun, JobStatus, MaintenancePreset, MaintenanceSettings, term};
use crate::backfill::BackfillPace;
use crate::error::Result;
use crate::gate::Gate;
use crate::name::Owner;
use crate::store;

/// Maintenance to be run; from [`crate::Headwater::maintenance`].
///
/// Any number of processes may run it: one of them is elected and runs the jobs, the others check every few seconds
/// whether the term is free. A process that is killed is replaced within 15 s, one that stops gracefully at once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// # let headwater = headwater::Headwater::in_memory().await?;
/// use headwater::maintenance::Job;
///
/// // By hand: each job until it has nothing left, elected or not.
/// for run in headwater.maintenance().run_once(&[Job::Heads, Job::MessageCleanup]).await? {
///     assert_eq!(run.error, None);
/// }
/// // Or for as long as the process lives.
/// let maintaining = headwater.maintenance().start();
/// maintaining.stop().await;
/// # headwater.close().await }
/// ```
#[derive(Debug)]
pub struct Maintenance {
    store: Arc<dyn store::Maintenance>,
    settings: MaintenanceSettings,
    /// The gate of its handle: it stops when that closes.
    gate: Arc<Gate>,
}

/// Maintenance that runs in the background; stops when dropped.
#[must_use = "maintenance stops when this is dropped"]
#[derive(Debug)]
pub struct Maintaining {
    on: Arc<watch::Sender<bool>>,
    task: JoinHandle<()>,
}

impl Maintenance {
    pub(crate) fn new(store: Arc<dyn store::Maintenance>) -> Self {
        Maintenance { store, settings: MaintenanceSettings::default(), gate: Arc::default() }
    }

    /// Stops when this gate closes.
    pub(crate) fn inside(self, gate: &Arc<Gate>) -> Self {
        Maintenance { gate: Arc::clone(gate), ..self }
    }

    /// How often jobs run and how much they do at a time.
    #[must_use]
    pub fn preset(self, preset: MaintenancePreset) -> Self {
        self.settings(preset.into())
    }

    /// The same, with values of its own: see [`MaintenanceSettings`].
    #[must_use]
    pub fn settings(mut self, settings: MaintenanceSettings) -> Self {
        self.settings = settings;
        self
    }

    /// How much of the database's capacity backfills may use, if it differs from the preset's.
    #[must_use]
    pub fn backfill_pace(mut self, pace: BackfillPace) -> Self {
        self.settings = self.settings.backfill_pace(pace);
        self
    }

    /// Runs each of these jobs once, until it has nothing left to do, elected or not. A job that fails does not stop
    /// the others; its run has the error. The history has these runs once the last of them has ended.
    pub async fn run_once(&self, jobs: &[Job]) -> Result<Vec<JobRun>> {
        let worker = self.worker();
        let mut runs = Vec::with_capacity(jobs.len());
        for job in jobs {
            runs.push(worker.run(*job, &StopSignal::never()).await.run);
        }
        if let Err(error) = self.store.jobs_ran(&runs).await {
            for run in &mut runs {
                run.error.get_or_insert_with(|| format!("the run was not recorded: {error}"));
            }
        }
        Ok(runs)
    }

    /// The history of each job, over all processes. Jobs that never ran are left out.
    pub async fn status(&self) -> Result<Vec<JobStatus>> {
        self.store.jobs().await
    }

    /// Runs all jobs when they are due, while this process is elected.
    pub fn start(self) -> Maintaining {
        let (on, stop) = watch::channel(true);
        let on = Arc::new(on);
        // Weak: dropping `Maintaining` stops it.
        let (switch, worker, inside) = (Arc::downgrade(&on), self.worker(), self.gate.enter());
        let task = tokio::spawn(async move {
            // A closed handle needs no maintenance.
            let Some(inside) = inside else { return };
            let mut running = pin!(term::run(worker, StopSignal::while_true(stop)));
            tokio::select! {
                () = &mut running => return,
                () = inside.closing() => {}
            }
            if let Some(on) = switch.upgrade() {
                on.send_replace(false);
            }
            running.await;
        });
        Maintaining { on, task }
    }

    fn worker(&self) -> Worker {
        let owner = Owner::new(format!("maintenance-{}-{}", std::process::id(), Uuid::now_v7()))
            .expect("the name is short and plain");
        Worker::new(Arc::clone(&self.store), self.settings.0, owner)
    }
}

impl Maintaining {
    /// Stops: the step under way ends, and the term is given up so that another process takes over at once.
    pub async fn stop(self) {
        self.on.send_replace(false);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "maintenance task failed");
        }
    }
}
