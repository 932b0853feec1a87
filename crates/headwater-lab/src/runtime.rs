//! `headwater-lab runtime`: what running consumers must show, measured and judged on both databases.
//!
//! Each check has an empty store of its own. Those about processes start real ones from this very program and end them by
//! their ids.

pub(crate) mod checks;
pub(crate) mod child;
pub(crate) mod children;
pub(crate) mod ending;
mod groups;
mod idle;
pub(crate) mod judge;
mod once;
mod order;
pub(crate) mod place;
pub(crate) mod publish;
mod rates;
pub(crate) mod report;
mod slow;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use rand::RngExt;

use crate::soak::OWN_POSTGRES;
use checks::Run;
pub(crate) use child::{ChildArgs, run_child};
use place::{Ground, Place};
use report::Judged;

/// Longer than any check takes; one that is still at it then has come to no result.
const CHECK_MAX: Duration = Duration::from_secs(20 * 60);

/// Options of `runtime`.
#[derive(Debug, Args)]
pub(crate) struct RuntimeArgs {
    /// Only these checks.
    #[arg(long, value_enum, num_args = 1.., value_name = "NAME")]
    only: Vec<Check>,
    /// A store to check on: own-postgres for a server of the lab's own, postgres://… (databases named headwater_lab_*
    /// are made there and removed), sqlite:path (files whose names begin so are made and removed). Default:
    /// own-postgres and files in the work directory.
    #[arg(long, num_args = 1.., value_name = "STORE")]
    store: Vec<String>,
    /// Shorter runs: about five minutes in all.
    #[arg(long)]
    quick: bool,
    /// Writes everything as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What all randomness starts from; drawn and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
    /// Where data and logs go.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/lab")]
    work: PathBuf,
}

/// What can be checked on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    /// Batch handlers reach 70 % of the bare verbs' rate.
    BatchRate,
    /// Handlers of single messages reach 100,000 a second on SQLite, 60,000 on PostgreSQL.
    SingleRate,
    /// A hundred groups keep up with 30,000 messages a second and read each once (PostgreSQL).
    Groups,
    /// Slow messages hold up nobody.
    Slow,
    /// Effects are there once although processes are killed.
    Once,
    /// SIGTERM hands work over at once, SIGKILL within three seconds.
    Term,
    /// Keys stay in order.
    Order,
    /// A hundred waiting consumers take less than 1 % of a core.
    Idle,
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Check::BatchRate => "batch-rate",
            Check::SingleRate => "single-rate",
            Check::Groups => "groups",
            Check::Slow => "slow",
            Check::Once => "once",
            Check::Term => "term",
            Check::Order => "order",
            Check::Idle => "idle",
        }
    }

    /// Whether it has something to say about a store.
    fn concerns(self, ground: &Ground) -> bool {
        self != Check::Groups || matches!(ground, Ground::Postgres(_))
    }

    async fn run(self, place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
        match self {
            Check::BatchRate => rates::batch(place, setting).await,
            Check::SingleRate => rates::single(place, setting).await,
            Check::Groups => groups::run(place, setting).await,
            Check::Slow => slow::run(place, setting).await,
            Check::Once => once::run(place, setting).await,
            Check::Term => ending::run(place, setting).await,
            Check::Order => order::run(place, setting).await,
            Check::Idle => idle::run(place, setting).await,
        }
    }
}

/// What all checks of a run share.
#[derive(Clone, Copy, Debug)]
struct Setting {
    quick: bool,
    seed: u64,
    /// On how many stores each check runs.
    stores: usize,
}

/// Runs what was asked for; true if nothing was violated.
pub(crate) async fn run(args: RuntimeArgs) -> Result<bool> {
    let seed = args.seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000_000));
    println!("seed {seed}");
    let stores = match &args.store[..] {
        [] => vec![OWN_POSTGRES.to_owned(), format!("sqlite:{}", args.work.join("runtime").display())],
        named => named.to_vec(),
    };
    let setting = Setting { quick: args.quick, seed, stores: stores.len() };
    let mut run = Run::begin(&args.work, args.quick, seed).await?;
    for store in &stores {
        let ground = Ground::prepare(store, &args.work).await?;
        for check in Check::value_variants() {
            let wanted = args.only.is_empty() || args.only.contains(check);
            if wanted && check.concerns(&ground) {
                let judged = async |place: &Place<'_>| check.run(place, &setting).await;
                run.judge(check.name(), &ground, CHECK_MAX, judged).await?;
            }
        }
    }
    run.end(args.json.as_deref())
}

/// Says on standard error what is going on, so that a person sees where the time goes.
pub(crate) fn progress(what: &str) {
    eprintln!("· {what}");
}
