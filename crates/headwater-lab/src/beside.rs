//! `headwater-lab beside`: requirements on Headwater beside hostile neighbours in the same database, file or group.
//!
//! Each scenario has an empty store of its own. It is measured first on the quiet store and then beside the neighbour,
//! in the same run, so that the machine cancels out. Counts and times are bounded; processes that were started are ended
//! by their ids.

mod child;
mod dedicated;
mod doctor;
mod greedy;
mod memory;
mod open_publisher;
mod open_transaction;
mod partitions;
mod probe;
mod publisher;
mod remove;
mod retries;
mod rights;
mod rollbacks;
mod savepoints;
mod snapshot;
mod stopped;
mod storm;
mod takeover;
mod waiting;

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::check::{self, Ground, Judged, OWN_POSTGRES, Place, Run, RunArgs};
use crate::server::Server;
pub(crate) use child::{BesideJob, run_job};

/// Longer than any scenario takes beyond its own `--seconds`; a scenario that is not done then has no result.
const SCENARIO_MAX: Duration = Duration::from_secs(20 * 60);
/// PostgreSQL's own default: the size of its lock table follows from it.
const CONNECTIONS: (&str, &str) = ("max_connections", "100");

/// Options of `beside`.
#[derive(Debug, Args)]
pub(crate) struct BesideArgs {
    /// Only these scenarios.
    #[arg(long, value_enum, num_args = 1.., value_name = "NAME")]
    only: Vec<Scenario>,
    /// Smaller counts and shorter times: about a quarter of an hour in all.
    #[arg(long)]
    quick: bool,
    /// How long `snapshot` and `storm` are held and `stopped` stops; by default 600 s, 600 s and 60 s, with --quick 30 s
    /// each.
    #[arg(long)]
    seconds: Option<u64>,
    #[command(flatten)]
    run: RunArgs,
}

/// The scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// One transaction with 1,000,000 publishes stays open: claims at most twice as slow (PostgreSQL).
    OpenPublisher,
    /// 20,000 publishes in savepoints of an open transaction: claims at most twice as slow (PostgreSQL).
    Savepoints,
    /// 10,000 rollbacks beside an open publisher of another topic: the messages between are drained at most twice as
    /// slowly, and a new one arrives within a second (PostgreSQL).
    Rollbacks,
    /// A REPEATABLE READ snapshot is held: claims stay as fast as they were (PostgreSQL).
    Snapshot,
    /// 300 dedicated topics beside 16 workers on shared ones: no lock table is full, claims at most twice as slow
    /// (PostgreSQL).
    Partitions,
    /// All verbs at once: no deadlock, and doctor finds nothing (PostgreSQL).
    Storm,
    /// A role that can only connect takes advisory locks and tries every object: all are refused, nothing slows down
    /// (PostgreSQL).
    Rights,
    /// A dedicated topic is created beside an open publishing transaction: other topics wait for 250 ms at most
    /// (PostgreSQL).
    Dedicated,
    /// Doctor takes at most 10 s for 1,000,000 outstanding ranges.
    Doctor,
    /// 1,000,000 waiting retries: publishing beside tracking and cleanup at most twice as slow at its p99 (SQLite).
    Retries,
    /// A group with 2,000,000 dead letters is removed: no publish waits for more than 250 ms (SQLite).
    Remove,
    /// Three plain-SQL writers in a loop: no publish fails (SQLite).
    Greedy,
    /// One of two consumer processes is killed under load: the other has handled everything within 3 s.
    Takeover,
    /// A consumer process is stopped, loses its messages to another, and continues: it settles nothing of them.
    Stopped,
    /// Messages of 50 MB through a buffer of 64 MiB: a consumer uses less than 200 MiB.
    Memory,
}

impl check::Check for Scenario {
    type Setting = Setting;

    fn concerns(&self, ground: &Ground) -> bool {
        match self {
            Scenario::OpenPublisher
            | Scenario::Savepoints
            | Scenario::Rollbacks
            | Scenario::Snapshot
            | Scenario::Partitions
            | Scenario::Storm
            | Scenario::Rights
            | Scenario::Dedicated => matches!(ground, Ground::Postgres(_)),
            Scenario::Retries | Scenario::Remove | Scenario::Greedy => matches!(ground, Ground::Sqlite(_)),
            Scenario::Doctor | Scenario::Takeover | Scenario::Stopped | Scenario::Memory => true,
        }
    }

    async fn run(&self, place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
        match self {
            Scenario::OpenPublisher => open_publisher::run(place, setting).await,
            Scenario::Savepoints => savepoints::run(place).await,
            Scenario::Rollbacks => rollbacks::run(place, setting).await,
            Scenario::Snapshot => snapshot::run(place, setting).await,
            Scenario::Partitions => partitions::run(place, setting).await,
            Scenario::Storm => storm::run(place, setting).await,
            Scenario::Rights => rights::run(place).await,
            Scenario::Dedicated => dedicated::run(place).await,
            Scenario::Doctor => doctor::run(place, setting).await,
            Scenario::Retries => retries::run(place, setting).await,
            Scenario::Remove => remove::run(place, setting).await,
            Scenario::Greedy => greedy::run(place, setting).await,
            Scenario::Takeover => takeover::run(place, setting).await,
            Scenario::Stopped => stopped::run(place, setting).await,
            Scenario::Memory => memory::run(place, setting).await,
        }
    }
}

/// Settings shared by all scenarios of a run.
#[derive(Clone, Copy, Debug)]
struct Setting {
    quick: bool,
    seconds: Option<u64>,
    seed: u64,
}

impl Setting {
    /// The count of a full run, or that of a quick one.
    fn count(&self, whole: u64, quick: u64) -> u64 {
        if self.quick { quick } else { whole }
    }

    /// How long something is held: `--seconds`, or the default of a full or a quick run.
    fn hold(&self, whole_seconds: u64, quick_seconds: u64) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or_else(|| self.count(whole_seconds, quick_seconds)))
    }
}

/// Runs the requested scenarios; true if nothing was violated.
pub(crate) async fn run(args: BesideArgs) -> Result<bool> {
    let at_most = Duration::from_secs(24 * 3_600);
    let seconds = args.seconds.map(Duration::from_secs);
    ensure!(seconds.is_none_or(|held| held <= at_most), "--seconds: must be at most a day");
    let seed = args.run.seed();
    let mut run = Run::begin(&args.run.work, args.quick, seed).await?;
    let stores = args.run.stores("beside")?;
    let setting = Setting { quick: args.quick, seconds: args.seconds, seed };
    let scenario_max = SCENARIO_MAX + seconds.unwrap_or_default() * 2;
    for store in &stores {
        let ground = if store == OWN_POSTGRES {
            Ground::Postgres(Server::start(&args.run.work, &[CONNECTIONS]).await?)
        } else {
            Ground::prepare(store, &args.run.work).await?
        };
        run.judge(&ground, &args.only, scenario_max, &setting).await?;
    }
    run.end(args.run.json.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Check;

    #[test]
    fn a_named_time_wins_over_those_of_whole_and_quick_runs() {
        let hold = |quick, seconds| Setting { quick, seconds, seed: 1 }.hold(600, 30).as_secs();
        assert_eq!((hold(false, None), hold(true, None)), (600, 30));
        assert_eq!((hold(false, Some(5)), hold(true, Some(5))), (5, 5));
    }

    #[test]
    fn every_scenario_concerns_a_store() {
        let file = Ground::Sqlite("x".into());
        let server = Ground::Postgres(Server::external("postgres://nowhere"));
        for scenario in Scenario::value_variants() {
            assert!(scenario.concerns(&file) || scenario.concerns(&server), "{scenario:?}");
        }
    }
}
