//! What every run of checks does: its report begins with the machine, each check has a place of its own, and it ends with a
//! table, a file for programs and a verdict.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use rand::RngExt;

use super::place::{Ground, Place};
use super::report::{Judged, Outcome, Report};
use crate::machine::{Machine, busy_percent};
use crate::soak::OWN_POSTGRES;

/// Options that every command with checks has.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A store to run on: own-postgres for a server of the lab's own, postgres://… (databases named headwater_lab_*
    /// are made there and removed), sqlite:path (files whose names begin so are made and removed). Default:
    /// own-postgres and files in the work directory.
    #[arg(long, num_args = 1.., value_name = "STORE")]
    store: Vec<String>,
    /// Writes everything as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// What all randomness starts from; drawn and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
    /// Where data and logs go.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/lab")]
    pub(crate) work: PathBuf,
}

impl RunArgs {
    /// The seed, printed so that the run can be repeated.
    pub(crate) fn seed(&self) -> u64 {
        let seed = self.seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000_000));
        println!("seed {seed}");
        seed
    }

    /// The stores to run on; by default a server, and a file of this name in the work directory, which exists.
    pub(crate) fn stores(&self, name: &str) -> Result<Vec<String>> {
        if !self.store.is_empty() {
            return Ok(self.store.clone());
        }
        let file = self.work.canonicalize()?.join(name);
        Ok(vec![OWN_POSTGRES.to_owned(), format!("sqlite:{}", file.display())])
    }
}

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
