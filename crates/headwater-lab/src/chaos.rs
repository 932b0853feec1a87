//! `headwater-lab chaos`: what disks, clocks, operators and handlers do to a store, with real processes under load.
//!
//! Each check has an empty store of its own and starts its processes from this same program. They publish numbers and print
//! line by line what was acknowledged and what was handled; the parent compares both with each other and with the log.

mod away;
mod blocked;
mod child;
mod clock;
mod crew;
mod disk;
mod failed_sync;
mod replaced;
mod restored;
mod slow_pull;
mod tools;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::check::{self, Ground, Judged, Place, Run, RunArgs};
pub(crate) use child::{ChaosJob, run_job};

/// Longer than any check takes; a check that is not done then has no result.
const CHECK_MAX: Duration = Duration::from_secs(5 * 60);

/// Options of `chaos`.
#[derive(Debug, Args)]
pub(crate) struct ChaosArgs {
    /// Only these checks.
    #[arg(long, value_enum, num_args = 1.., value_name = "NAME")]
    only: Vec<Check>,
    /// How long `blocked` blocks every thread.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How many positions of a failing sync `failed-sync` tries.
    #[arg(long, default_value_t = 40)]
    positions: u64,
    #[command(flatten)]
    run: RunArgs,
}

/// The checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    /// An older copy is restored into the open file: what is published afterwards reaches every group (SQLite).
    Restored,
    /// The file is deleted, or replaced by another, while it is open: nothing is acknowledged into the deleted file (SQLite).
    Replaced,
    /// One sync fails, then the power: nothing acknowledged is lost (SQLite).
    FailedSync,
    /// The clock jumps by an hour and by 31 days, both ways: nothing unread is removed, nothing stalls (SQLite).
    Clock,
    /// Handlers block every thread of their runtime: nothing runs twice.
    Blocked,
    /// Pulled batches take longer than their lease: nothing that was handled is buried.
    SlowPull,
    /// A queue has no workers for 40 days: its messages wait.
    Away,
}

impl check::Check for Check {
    type Setting = Setting;

    fn concerns(&self, ground: &Ground) -> bool {
        match self {
            Check::Restored | Check::Replaced | Check::FailedSync | Check::Clock => {
                matches!(ground, Ground::Sqlite(_))
            }
            Check::Blocked | Check::SlowPull | Check::Away => true,
        }
    }

    async fn run(&self, place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
        match self {
            Check::Restored => restored::run(place).await,
            Check::Replaced => replaced::run(place).await,
            Check::FailedSync => failed_sync::run(setting).await,
            Check::Clock => clock::run(place, setting).await,
            Check::Blocked => blocked::run(place, setting).await,
            Check::SlowPull => slow_pull::run(place).await,
            Check::Away => away::run(place).await,
        }
    }
}

/// Settings shared by all checks of a run.
#[derive(Debug)]
struct Setting {
    work: PathBuf,
    blocked: Duration,
    positions: u64,
    seed: u64,
}

/// Runs the requested checks; true if nothing was violated.
pub(crate) async fn run(args: ChaosArgs) -> Result<bool> {
    let seed = args.run.seed();
    let mut run = Run::begin(&args.run.work, false, seed).await?;
    let stores = args.run.stores("chaos")?;
    let setting = Setting {
        work: args.run.work.canonicalize()?,
        blocked: Duration::from_secs(args.seconds),
        positions: args.positions,
        seed,
    };
    for store in &stores {
        let ground = Ground::prepare(store, &args.run.work).await?;
        run.judge(&ground, &args.only, CHECK_MAX, &setting).await?;
    }
    run.end(args.run.json.as_deref())
}
