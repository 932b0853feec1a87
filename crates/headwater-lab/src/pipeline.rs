//! `headwater-lab pipeline`: requirements on the batch-indexing pipeline, measured and judged on both databases.
//!
//! Each check has an empty store and an empty directory of its own. Indexers whose memory counts, and services that are
//! killed, are processes of this same program, ended by their ids.

mod bare;
mod child;
mod competing;
mod disk;
mod drill;
mod files;
mod index;
mod indexing;
mod query;
mod services;
mod size;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tempfile::TempDir;

use crate::check::{self, Ground, Judged, Place, Run, RunArgs};
pub(crate) use child::{PipelineJob, run_job};

/// Longer than any check takes; a check that is not done then has no result.
const CHECK_MAX: Duration = Duration::from_secs(60 * 60);
/// The world of most checks: with half of its cells occupied a tick has 5,000.
const WORLD: [u64; 2] = [100, 100];
const OCCUPANCY: f64 = 0.5;
const CELLS_PER_TICK: u64 = 5_000;
/// Ticks of a file and of a flush.
const BATCH: u64 = 1_000;

/// Options of `pipeline`.
#[derive(Debug, Args)]
pub(crate) struct PipelineArgs {
    /// Only these checks.
    #[arg(long, value_enum, num_args = 1.., value_name = "NAME")]
    only: Vec<Check>,
    /// Fewer ticks and kills: less than ten minutes in all.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    run: RunArgs,
}

/// The checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    /// One environment indexer writes 14,000 ticks of 5,000 cells a second into SQLite, in less than 500 MB.
    Index,
    /// One, two and four indexers compete on PostgreSQL: two are faster than one.
    Competing,
    /// A tick with 1,000 cells takes 2 KB at most.
    Size,
    /// A whole tick, and a small region of a large world, are answered within 10 ms.
    Query,
    /// The disk that a run takes; done ticks are removed within a minute.
    Disk,
    /// Each tick is in the index once, whatever service is killed.
    Drill,
}

impl check::Check for Check {
    type Setting = Setting;

    fn concerns(&self, ground: &Ground) -> bool {
        let is_postgres = matches!(ground, Ground::Postgres(_));
        match self {
            Check::Index | Check::Size | Check::Query => !is_postgres,
            Check::Competing => is_postgres,
            Check::Disk | Check::Drill => true,
        }
    }

    async fn run(&self, place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
        match self {
            Check::Index => index::run(setting).await,
            Check::Competing => competing::run(place, setting).await,
            Check::Size => size::run(setting).await,
            Check::Query => query::run(setting).await,
            Check::Disk => disk::run(place, setting).await,
            Check::Drill => drill::run(place, setting).await,
        }
    }
}

/// Settings shared by all checks of a run.
#[derive(Clone, Debug)]
struct Setting {
    /// Where files are.
    work: PathBuf,
    quick: bool,
    seed: u64,
}

impl Setting {
    /// The count of a full run, or that of a quick one.
    fn count(&self, whole: u64, quick: u64) -> u64 {
        if self.quick { quick } else { whole }
    }

    /// An empty directory, removed with its value.
    fn directory(&self) -> Result<TempDir> {
        let directory = tempfile::Builder::new().prefix("pipeline-").tempdir_in(&self.work);
        directory.with_context(|| format!("creating a directory in {}", self.work.display()))
    }
}

/// The store of a check: the database of its place, or a file in its directory.
fn store_url(place: &Place<'_>, directory: &TempDir) -> String {
    if place.is_postgres() { place.url.clone() } else { sqlite_in(directory) }
}

/// A store in a file of a directory.
fn sqlite_in(directory: &TempDir) -> String {
    format!("sqlite:{}", directory.path().join("pipeline.db").display())
}

/// Runs the requested checks; true if nothing was violated.
pub(crate) async fn run(args: PipelineArgs) -> Result<bool> {
    let seed = args.run.seed();
    let mut run = Run::begin(&args.run.work, args.quick, seed).await?;
    let stores = args.run.stores("pipeline")?;
    let setting = Setting { work: args.run.work.canonicalize()?, quick: args.quick, seed };
    for store in &stores {
        let ground = Ground::prepare(store, &args.run.work).await?;
        run.judge(&ground, &args.only, CHECK_MAX, &setting).await?;
    }
    run.end(args.run.json.as_deref())
}
