//! `headwater-lab runtime`: requirements on running consumers, measured and judged on both databases.
//!
//! Each check has an empty store of its own. Checks with several processes start them from this same program and end them
//! by their ids.

pub(crate) mod ending;
mod groups;
mod idle;
pub(crate) mod once;
mod order;
mod processes;
mod rates;
mod slow;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::check::{self, Ground, Judged, Place, Run, RunArgs};

/// Longer than any check takes; a check that is not done then has no result.
const CHECK_MAX: Duration = Duration::from_secs(20 * 60);

/// Options of `runtime`.
#[derive(Debug, Args)]
pub(crate) struct RuntimeArgs {
    /// Only these checks.
    #[arg(long, value_enum, num_args = 1.., value_name = "NAME")]
    only: Vec<Check>,
    /// Shorter runs: about five minutes in all.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    run: RunArgs,
}

/// The checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    /// Batch handlers reach 70 % of the bare verbs' rate.
    BatchRate,
    /// Handlers of single messages reach 100,000 a second on SQLite, 60,000 on PostgreSQL.
    SingleRate,
    /// A hundred groups keep up with 30,000 messages a second and read each once (PostgreSQL).
    Groups,
    /// Slow messages do not delay others.
    Slow,
    /// Effects exist once although processes are killed.
    Once,
    /// SIGTERM hands work over at once, SIGKILL within three seconds.
    Term,
    /// Keys stay in order.
    Order,
    /// Processes move 5,000 steps a second on SQLite, 2,000 on PostgreSQL, and more than those of DBOS.
    Processes,
    /// A hundred waiting consumers take less than 1 % of a core.
    Idle,
}

impl check::Check for Check {
    type Setting = Setting;

    fn concerns(&self, ground: &Ground) -> bool {
        *self != Check::Groups || matches!(ground, Ground::Postgres(_))
    }

    async fn run(&self, place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
        match self {
            Check::BatchRate => rates::batch(place, setting).await,
            Check::SingleRate => rates::single(place, setting).await,
            Check::Groups => groups::run(place, setting).await,
            Check::Slow => slow::run(place, setting).await,
            Check::Once => once::run(place, setting).await,
            Check::Term => ending::run(place, setting).await,
            Check::Order => order::run(place, setting).await,
            Check::Processes => processes::run(place, setting).await,
            Check::Idle => idle::run(place, setting).await,
        }
    }
}

/// Settings shared by all checks of a run.
#[derive(Clone, Debug)]
struct Setting {
    /// Where peers are installed.
    work: PathBuf,
    quick: bool,
    seed: u64,
    /// On how many stores each check runs.
    stores: usize,
}

/// Runs the requested checks; true if nothing was violated.
pub(crate) async fn run(args: RuntimeArgs) -> Result<bool> {
    let seed = args.run.seed();
    let mut run = Run::begin(&args.run.work, args.quick, seed).await?;
    let stores = args.run.stores("runtime")?;
    let setting = Setting { work: args.run.work.clone(), quick: args.quick, seed, stores: stores.len() };
    for store in &stores {
        let ground = Ground::prepare(store, &args.run.work).await?;
        run.judge(&ground, &args.only, CHECK_MAX, &setting).await?;
    }
    run.end(args.run.json.as_deref())
}
