//! `headwater-lab http`: requirements on the server, measured and judged over HTTP.
//!
//! Each check has an empty store of its own, and on it a server in a process of its own: `headwater serve`, whose program is expected
//! beside that of the lab, on a free port of 127.0.0.1. The lab is its client and shares the cores with it.

mod filled;
mod idle;
mod load;
mod pages;
mod peers;
mod polls;
mod rate;
mod serve;
mod stream;
mod waiting;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::check::{self, Ground, Judged, Place, Run, RunArgs};

/// Longer than any check takes; a check that is not done then has no result.
const CHECK_MAX: Duration = Duration::from_secs(30 * 60);

/// Options of `http`.
#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    /// Only these checks.
    #[arg(long, value_enum, num_args = 1.., value_name = "NAME")]
    only: Vec<Check>,
    /// Smaller counts and shorter times: about five minutes in all.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    run: RunArgs,
}

/// The checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    /// 30,000 messages a second in batches, 10,000 singly, 100,000 streamed and acked; NATS and RabbitMQ beside it (SQLite).
    Rate,
    /// 1,000 idle long polls and 200 streams need no more memory over time; a waiting claim returns within 20 ms of a publish.
    Idle,
    /// Every page of the dashboard is rendered within 50 ms with 1,000 topics and 10,000 groups.
    Pages,
}

impl check::Check for Check {
    type Setting = Setting;

    fn concerns(&self, ground: &Ground) -> bool {
        match self {
            Check::Rate => matches!(ground, Ground::Sqlite(_)),
            Check::Idle | Check::Pages => true,
        }
    }

    async fn run(&self, place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
        match self {
            Check::Rate => rate::run(place, setting).await,
            Check::Idle => idle::run(place, setting).await,
            Check::Pages => pages::run(place).await,
        }
    }
}

/// Settings shared by all checks of a run.
#[derive(Clone, Debug)]
struct Setting {
    /// Where brokers have their files.
    work: PathBuf,
    quick: bool,
}

impl Setting {
    /// The count of a full run, or that of a quick one.
    fn count(&self, whole: u64, quick: u64) -> u64 {
        if self.quick { quick } else { whole }
    }
}

/// Runs the requested checks; true if nothing was violated.
pub(crate) async fn run(args: HttpArgs) -> Result<bool> {
    let mut run = Run::begin(&args.run.work, args.quick, args.run.seed()).await?;
    let stores = args.run.stores("http")?;
    let setting = Setting { work: args.run.work.canonicalize()?, quick: args.quick };
    for store in &stores {
        let ground = Ground::prepare(store, &args.run.work).await?;
        run.judge(&ground, &args.only, CHECK_MAX, &setting).await?;
    }
    run.end(args.run.json.as_deref())
}
