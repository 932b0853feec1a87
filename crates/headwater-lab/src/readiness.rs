//! `headwater-lab readiness`: requirements on fan-out under load, measured and judged on PostgreSQL.
//!
//! Each check has an empty database of its own. Checks with several processes start them from this same program and end
//! them by their ids. Times scale with `--minutes`; one is a smoke test, sixty is the full test.

mod backfill;
mod heartbeats;
mod kill;
mod loads;
mod mode;
mod oltp;
mod partitions;
mod pinned;
mod sample;
mod tenants;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use headwater::topic::Tracking;
use rand::RngExt;

use crate::check::{self, Ground, Judged, OWN_POSTGRES, Place, Run};
use loads::Load;

/// Options of `readiness`.
#[derive(Debug, Args)]
pub(crate) struct ReadinessArgs {
    /// Only these checks.
    #[arg(long, value_enum, num_args = 1.., value_name = "NAME")]
    only: Vec<Check>,
    /// The store: own-postgres for a server of the lab's own, or postgres://… (databases named headwater_lab_* are created
    /// there and removed).
    #[arg(long, value_name = "STORE", default_value = OWN_POSTGRES)]
    store: String,
    /// How long each load is held.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Backfills five million messages, however long loads are held.
    #[arg(long)]
    full: bool,
    /// Writes everything as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Directory for data and logs.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/lab")]
    work: PathBuf,
}

/// The checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    /// Reference counting, 4 groups, 10,000 messages a second.
    Lt1,
    /// Reference counting, 8 groups, 10,000 messages a second.
    Lt2,
    /// Reference counting, 16 groups, 10,000 messages a second.
    Lt3,
    /// Reference counting, 32 groups, 10,000 messages a second: shown, not judged.
    Lt4,
    /// Offset watermark, 16 groups, 10,000 messages a second.
    Lt5,
    /// Offset watermark, 64 groups, 10,000 messages a second.
    Lt6,
    /// Offset watermark, 100 groups, 30,000 messages a second.
    Lt7,
    /// One of three groups is killed, declared dead, and resurrected; in reference counting also with a backfill.
    Kill,
    /// A backfill beside two groups and another application, killed, cancelled and resumed; and at every pace.
    Backfill,
    /// A change of mode in both directions while three groups consume.
    Mode,
    /// Five hundred processes of one group send heartbeats; the server stops and starts again.
    Heartbeats,
    /// A large topic with ten groups and a small one with two.
    Tenants,
    /// Partitions are created ahead and dropped behind groups of different speed, a large one within a second.
    Partitions,
    /// A foreign transaction holds a snapshot all the time.
    Pinned,
}

impl check::Check for Check {
    type Setting = Setting;

    fn concerns(&self, ground: &Ground) -> bool {
        matches!(ground, Ground::Postgres(_))
    }

    async fn run(&self, place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
        use Tracking::{OffsetWatermark, ReferenceCounting};
        let load = |tracking, groups, per_second, is_judged| Load { tracking, groups, per_second, is_judged };
        match self {
            Check::Lt1 => loads::run(place, setting, load(ReferenceCounting, 4, 10_000, true)).await,
            Check::Lt2 => loads::run(place, setting, load(ReferenceCounting, 8, 10_000, true)).await,
            Check::Lt3 => loads::run(place, setting, load(ReferenceCounting, 16, 10_000, true)).await,
            Check::Lt4 => loads::run(place, setting, load(ReferenceCounting, 32, 10_000, false)).await,
            Check::Lt5 => loads::run(place, setting, load(OffsetWatermark, 16, 10_000, true)).await,
            Check::Lt6 => loads::run(place, setting, load(OffsetWatermark, 64, 10_000, true)).await,
            Check::Lt7 => loads::run(place, setting, load(OffsetWatermark, 100, 30_000, true)).await,
            Check::Kill => kill::run(place, setting).await,
            Check::Backfill => backfill::run(place, setting).await,
            Check::Mode => mode::run(place, setting).await,
            Check::Heartbeats => heartbeats::run(place, setting).await,
            Check::Tenants => tenants::run(place, setting).await,
            Check::Partitions => partitions::run(place, setting).await,
            Check::Pinned => pinned::run(place, setting).await,
        }
    }
}

/// Settings shared by all checks of a run.
#[derive(Clone, Debug)]
struct Setting {
    minutes: f64,
    full: bool,
    work: PathBuf,
}

impl Setting {
    /// For how long a load is held.
    fn hold(&self) -> Duration {
        Duration::from_secs_f64(60.0 * self.minutes)
    }

    /// This many at one minute, in proportion with more.
    fn scaled(&self, at_a_minute: u64, at_most: u64) -> u64 {
        ((at_a_minute as f64 * self.minutes) as u64).clamp(1_000, at_most)
    }
}

/// Runs the requested checks; true if nothing was violated.
pub(crate) async fn run(args: ReadinessArgs) -> Result<bool> {
    ensure!((0.05..=600.0).contains(&args.minutes), "--minutes {}: must be from 0.05 to 600", args.minutes);
    let setting = Setting { minutes: args.minutes, full: args.full, work: args.work.clone() };
    let seed = rand::rng().random_range(0..1_000_000_000);
    let mut run = Run::begin(&args.work, args.minutes < 60.0, seed).await?;
    let ground = Ground::prepare(&args.store, &args.work).await?;
    ensure!(matches!(ground, Ground::Postgres(_)), "--store {}: readiness needs PostgreSQL", args.store);
    let check_max = Duration::from_secs(20 * 60) + setting.hold() * 4;
    run.judge(&ground, &args.only, check_max, &setting).await?;
    run.end(args.json.as_deref())
}
