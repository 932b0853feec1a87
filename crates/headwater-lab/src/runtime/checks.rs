//! What every run of checks does: its report begins with the machine, each check has a place of its own, and it ends with a
//! table, a file for programs and a verdict.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::place::{Ground, Place};
use super::report::{Judged, Outcome, Report};
use crate::machine::{Machine, busy_percent};

/// A run of checks.
pub(crate) struct Run {
    began: Instant,
    report: Report,
}

impl Run {
    pub(crate) async fn begin(work: &Path, quick: bool, seed: u64) -> Result<Self> {
        let began = Instant::now();
        std::fs::create_dir_all(work)?;
        let report = Report {
            machine: Machine::read(work),
            quick,
            seed,
            busy_before_percent: busy_percent().await,
            seconds: 0.0,
            outcomes: vec![],
        };
        Ok(Run { began, report })
    }

    /// One check in a place of its own. That it fails is a result like any other: the next one runs all the same.
    pub(crate) async fn judge(
        &mut self,
        name: &'static str,
        ground: &Ground,
        at_most: Duration,
        check: impl AsyncFnOnce(&Place<'_>) -> Result<Vec<Judged>>,
    ) -> Result<()> {
        let store = ground.engine();
        eprintln!("{name} on {store}");
        let start = Instant::now();
        let place = ground.place(name).await?;
        // On the heap: the checks' states are large, and only one of them is used at a time.
        let judged = tokio::time::timeout(at_most, Box::pin(check(&place))).await;
        place.clear().await?;
        let result = judged
            .with_context(|| format!("not done within {at_most:?}"))
            .and_then(|judged| judged)
            .map_err(|error| format!("{error:#}"));
        let seconds = start.elapsed().as_secs_f64();
        self.report.outcomes.push(Outcome { check: name, store, seconds, result });
        Ok(())
    }

    /// Prints the table and writes the file; true if nothing was violated.
    pub(crate) fn end(mut self, json: Option<&Path>) -> Result<bool> {
        self.report.seconds = self.began.elapsed().as_secs_f64();
        println!("{}", self.report.table());
        if let Some(path) = json {
            let text = serde_json::to_string_pretty(&self.report.json())?;
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(self.report.is_met())
    }
}
