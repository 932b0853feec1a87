//! Shared by all checks: a store for each check, one way to start processes, to judge figures and to report them.
//!
//! A command lists its checks as a [`Check`]; [`Run`] does the rest. The report begins with the machine, and the run ends with a
//! table, a file for programs and a verdict.

pub(crate) mod child;
mod figure;
pub(crate) mod http;
mod judge;
mod place;
mod process;
pub(crate) mod publish;
pub(crate) mod report;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use rand::RngExt;

use crate::machine::{Machine, busy_percent};
pub(crate) use child::{ChildArgs, GRACE, Job, LedgerJob, Maintained, Progress, READY, STORE_VARIABLE};
pub(crate) use figure::{Figure, Unit, best, median, ms, percentile_ms, thirds};
pub(crate) use judge::{Kill, OrderBook, Record, effects};
pub(crate) use place::{Ground, OWN_POSTGRES, Place, eventually, problems, settled, soundness, unsettled};
pub(crate) use process::Process;
pub(crate) use publish::Pace;
pub(crate) use report::{Floor, Judged};
use report::{Outcome, Report};

/// The checks of one command, named as on its command line.
pub(crate) trait Check: ValueEnum + PartialEq {
    /// Settings shared by all checks of a run.
    type Setting;

    /// Whether the check applies to a store.
    fn concerns(&self, ground: &Ground) -> bool;

    async fn run(&self, place: &Place<'_>, setting: &Self::Setting) -> Result<Vec<Judged>>;
}

/// Options that every command with checks has.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A store to run on: own-postgres for a server of the lab's own, postgres://… (databases named headwater_lab_*
    /// are created there and removed), sqlite:path (files whose names begin so are created and removed). Default:
    /// own-postgres and files in the work directory.
    #[arg(long, num_args = 1.., value_name = "STORE")]
    store: Vec<String>,
    /// Writes everything as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The seed of all randomness; chosen and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for data and logs.
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

    /// Runs the checks that apply to a store: the requested ones, or all.
    pub(crate) async fn judge<C: Check>(
        &mut self,
        ground: &Ground,
        only: &[C],
        at_most: Duration,
        setting: &C::Setting,
    ) -> Result<()> {
        let wanted = |check: &&C| (only.is_empty() || only.contains(check)) && check.concerns(ground);
        for check in C::value_variants().iter().filter(wanted) {
            let name = check.to_possible_value().context("every check has a name")?.get_name().to_owned();
            let store = ground.engine();
            eprintln!("{name} on {store}");
            let start = Instant::now();
            let place = ground.place(&name).await?;
            // On the heap: the futures of the checks are large, and only one of them is used at a time.
            let judged = tokio::time::timeout(at_most, Box::pin(check.run(&place, setting))).await;
            place.clear().await?;
            // A failure is a result like any other: the next check still runs.
            let result = judged
                .with_context(|| format!("not done within {at_most:?}"))
                .and_then(|judged| judged)
                .map_err(|error| format!("{error:#}"));
            let seconds = start.elapsed().as_secs_f64();
            self.report.outcomes.push(Outcome { check: name, store, seconds, result });
        }
        Ok(())
    }

    /// Prints the table and writes the file; true if nothing was violated.
    pub(crate) fn end(mut self, json: Option<&Path>) -> Result<bool> {
        self.report.seconds = self.began.elapsed().as_secs_f64();
        println!("{}", self.report.table());
        report::write_json(json, &self.report.json())?;
        Ok(self.report.is_met())
    }
}

/// Prints on standard error what is being done, so that an operator sees where the time is spent.
pub(crate) fn progress(what: &str) {
    eprintln!("· {what}");
}
