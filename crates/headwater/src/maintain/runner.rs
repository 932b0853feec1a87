//! Runs the jobs of upkeep: once by hand, or for as long as a process lives, one elected worker per namespace.

use std::sync::Arc;

use super::{Job, JobRun};
use crate::error::Result;
use crate::store::Store;

/// How often jobs run and how much they do at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MaintenancePreset {
    /// What suits most: the intervals in [`Job`].
    #[default]
    Standard,
    /// Longer intervals, smaller batches.
    LowThroughput,
    /// Cleanup every minute, larger batches.
    HighThroughput,
    /// Deaths and cleanup are noticed soonest.
    Critical,
}

/// Maintenance about to be run; from [`crate::Headwater::maintenance`].
#[derive(Debug)]
pub struct Maintenance {
    store: Arc<dyn Store>,
    preset: MaintenancePreset,
}

/// Maintenance that runs in the background; stops when dropped.
#[derive(Debug)]
pub struct Maintaining {}

impl Maintenance {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Maintenance { store, preset: MaintenancePreset::default() }
    }

    /// How often and how much.
    #[must_use]
    pub fn preset(mut self, preset: MaintenancePreset) -> Self {
        self.preset = preset;
        self
    }

    /// Runs each of these jobs once, until it has nothing left to do, elected or not. A job that fails does not stop the
    /// others; its run carries the error.
    pub async fn run_once(&self, jobs: &[Job]) -> Result<Vec<JobRun>> {
        let _ = (&self.store, self.preset, jobs);
        todo!()
    }

    /// Runs all jobs when they are due, whenever this process is the elected worker.
    pub fn start(self) -> Maintaining {
        todo!()
    }
}

impl Maintaining {
    /// Stops: what is under way ends, and the election is given up so that another takes over at once.
    pub async fn stop(self) {
        todo!()
    }
}
