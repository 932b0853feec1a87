//! `headwater-lab relay`: requirements on relays, measured and judged with real brokers.
//!
//! Each check has an empty store of its own and starts the brokers that it needs: Kafka, RabbitMQ and NATS on free ports of
//! 127.0.0.1, removed with the check. Relays that are killed are processes of this same program.

mod bare;
mod brokers;
mod child;
mod exactly_once;
mod kill;
mod load;
mod observed;
mod outage;
mod rate;
mod read;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::check::{self, Ground, Judged, Place, Run, RunArgs};
pub(crate) use bare::acked;
pub(crate) use brokers::{Kind, Live, amqp, jetstream};
pub(crate) use child::{RelayJob, run_job};

/// Longer than any check takes; a check that is not done then has no result.
const CHECK_MAX: Duration = Duration::from_secs(60 * 60);

/// Options of `relay`.
#[derive(Debug, Args)]
pub(crate) struct RelayArgs {
    /// Only these checks.
    #[arg(long, value_enum, num_args = 1.., value_name = "NAME")]
    only: Vec<Check>,
    /// Smaller counts and shorter outages: less than ten minutes in all.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    run: RunArgs,
}

/// The checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    /// A relay reaches 60 % of the bare client's rate into Kafka and NATS, 70 % into RabbitMQ.
    Rate,
    /// Each message is in Kafka once, whatever is killed.
    ExactlyOnce,
    /// Nothing is lost and keys stay in order although relays are killed.
    Kill,
    /// A broker that is down delays no relay to another one, and everything arrives once it is back.
    Outage,
}

impl check::Check for Check {
    type Setting = Setting;

    fn concerns(&self, _ground: &Ground) -> bool {
        true
    }

    async fn run(&self, place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
        match self {
            Check::Rate => rate::run(place, setting).await,
            Check::ExactlyOnce => exactly_once::run(place, setting).await,
            Check::Kill => kill::run(place, setting).await,
            Check::Outage => outage::run(place, setting).await,
        }
    }
}

/// Settings shared by all checks of a run.
#[derive(Clone, Debug)]
struct Setting {
    /// Where brokers have their files.
    work: PathBuf,
    quick: bool,
    seed: u64,
}

impl Setting {
    /// The count of a full run, or that of a quick one.
    fn count(&self, whole: u64, quick: u64) -> u64 {
        if self.quick { quick } else { whole }
    }
}

/// Runs the requested checks; true if nothing was violated.
pub(crate) async fn run(args: RelayArgs) -> Result<bool> {
    let seed = args.run.seed();
    let mut run = Run::begin(&args.run.work, args.quick, seed).await?;
    let stores = args.run.stores("relay")?;
    let setting = Setting { work: args.run.work.canonicalize()?, quick: args.quick, seed };
    for store in &stores {
        let ground = Ground::prepare(store, &args.run.work).await?;
        run.judge(&ground, &args.only, CHECK_MAX, &setting).await?;
    }
    run.end(args.run.json.as_deref())
}
