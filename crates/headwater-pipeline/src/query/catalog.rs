//! Which runs there are, and their indexes.

use std::sync::{Mutex, PoisonError, RwLock};

use async_trait::async_trait;

use crate::contracts::RunInfo;
use crate::error::Result;
use crate::index::{Index, IndexOptions};

/// Knows the runs that can be queried.
#[async_trait]
pub trait RunCatalog: Send + Sync {
    /// All runs in their newest state, in any order.
    async fn runs(&self) -> Result<Vec<RunInfo>>;

    /// One run in its newest state.
    async fn run(&self, run_id: &str) -> Result<Option<RunInfo>> {
        Ok(self.runs().await?.into_iter().find(|run| run.run_id == run_id))
    }

    /// The index of a run that exists. It may have no rows yet.
    async fn index(&self, run_id: &str) -> Result<Index>;
}

/// Indexes that were used last, so that requests share their connections.
#[derive(Debug)]
pub struct OpenIndexes {
    url: String,
    options: IndexOptions,
    max: usize,
    /// The one used last is the last.
    open: Mutex<Vec<Index>>,
}

impl OpenIndexes {
    /// Indexes at a URL, of which at most `max` stay open.
    pub fn new(url: &str, options: &IndexOptions, max: usize) -> Self {
        OpenIndexes { url: url.to_owned(), options: options.clone(), max, open: Mutex::default() }
    }

    /// The index of a run.
    pub fn get(&self, run_id: &str) -> Result<Index> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match open.iter().position(|index| index.run_id() == run_id) {
            Some(at) => open.remove(at),
            None => Index::open(&self.url, run_id, &self.options)?,
        };
        open.push(index.clone());
        // Not closed but dropped: requests that use it still have it.
        let superfluous = open.len().saturating_sub(self.max);
        open.drain(..superfluous);
        Ok(index)
    }
}

/// A list of runs that the program keeps, all with their indexes at one URL.
#[derive(Debug)]
pub struct FixedRuns {
    runs: RwLock<Vec<RunInfo>>,
    indexes: OpenIndexes,
}

impl FixedRuns {
    /// These runs.
    pub fn new(url: &str, options: &IndexOptions, runs: Vec<RunInfo>) -> Self {
        FixedRuns { runs: RwLock::new(runs), indexes: OpenIndexes::new(url, options, 16) }
    }

    /// Adds a run, or changes its state.
    pub fn set(&self, run: RunInfo) {
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|there| there.run_id != run.run_id);
        runs.push(run);
    }
}

#[async_trait]
impl RunCatalog for FixedRuns {
    async fn runs(&self) -> Result<Vec<RunInfo>> {
        Ok(self.runs.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn index(&self, run_id: &str) -> Result<Index> {
        self.indexes.get(run_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_indexes_used_last_stay_open() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().display());
        let indexes = OpenIndexes::new(&url, &IndexOptions::default(), 2);
        for run in ["a", "b", "a", "c"] {
            assert_eq!(indexes.get(run).unwrap().run_id(), run);
        }
        let open: Vec<String> =
            indexes.open.lock().unwrap().iter().map(|index| index.run_id().to_owned()).collect();
        assert_eq!(open, ["a", "c"]);
    }
}
