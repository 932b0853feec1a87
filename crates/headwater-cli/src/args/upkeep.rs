//! What `backfill`, `maintain`, `audit`, `migrate` and `demo` take.

use std::path::PathBuf;

use clap::Subcommand;
use headwater::maintenance::{Job, MaintenancePreset};
use headwater::store::BackfillPace;

use super::group::GroupArgs;
use super::words::{job, maintenance_preset, pace};

#[derive(Debug, Subcommand)]
pub(crate) enum BackfillCommand {
    /// List backfills of all topics, newest first
    ///
    /// Example: headwater backfill list --topic orders
    List(BackfillListArgs),
    /// Start a backfill for a group; subscribing below the end and coming back from the dead start one by themselves
    ///
    /// Example: headwater backfill start orders audit --messages-max 500000
    Start(BackfillStartArgs),
    /// Stop a backfill at once; what it did stays
    ///
    /// Example: headwater backfill cancel orders audit
    Cancel(GroupArgs),
    /// Let a cancelled or failed backfill go on from its checkpoint
    ///
    /// Example: headwater backfill resume orders audit
    Resume(GroupArgs),
    /// Watch a backfill until it ends; exits with 1 if it was cancelled or failed
    ///
    /// Examples:
    ///   headwater backfill watch orders audit
    ///   headwater backfill watch orders audit --run --pace conservative
    #[command(verbatim_doc_comment)]
    Watch(BackfillWatchArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct BackfillListArgs {
    /// Only those of this topic
    #[arg(long)]
    pub(crate) topic: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BackfillStartArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// The most messages it covers: the last ones before the group came
    #[arg(
        long,
        default_value_t = headwater::store::BackfillLimits::default().messages_max,
        value_parser = clap::value_parser!(u64).range(1..),
        allow_hyphen_values = true
    )]
    pub(crate) messages_max: u64,
    /// The fastest it may go, in messages a second
    #[arg(
        long,
        default_value_t = headwater::store::BackfillLimits::default().rate_max,
        value_parser = clap::value_parser!(u32).range(1..),
        allow_hyphen_values = true
    )]
    pub(crate) rate_max: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BackfillWatchArgs {
    #[command(flatten)]
    pub(crate) of: GroupArgs,
    /// Do the work here, unless another process has it
    #[arg(long)]
    pub(crate) run: bool,
    /// With --run: how much of the database it may take
    #[arg(long, requires = "run", value_parser = pace(), default_value = "standard")]
    pub(crate) pace: BackfillPace,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MaintainArgs {
    /// Only these jobs, separated by commas
    #[arg(long, value_name = "JOB,...", value_delimiter = ',', value_parser = job())]
    pub(crate) only: Vec<Job>,
    /// Run all jobs whenever they are due, until told to stop
    #[arg(long, conflicts_with = "only")]
    pub(crate) watch: bool,
    /// How often jobs run and how much they do at a time
    #[arg(long, value_parser = maintenance_preset(), default_value = "standard")]
    pub(crate) preset: MaintenancePreset,
    /// Run nothing; tell how the jobs have been doing, over all workers
    #[arg(long, conflicts_with_all = ["only", "watch", "preset"])]
    pub(crate) status: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// At most so many
    #[arg(long, default_value_t = 100)]
    pub(crate) max: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MigrateArgs {
    /// Only tell the version, change nothing
    #[arg(long)]
    pub(crate) status: bool,
    /// Install into an SQLite file that holds another application's tables
    #[arg(long)]
    pub(crate) adopt: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// The same story in a few seconds
    #[arg(long)]
    pub(crate) fast: bool,
}

/// What the demo tells its own processes.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoWorkerArgs {
    /// The embedded store's file
    pub(crate) file: PathBuf,
    /// The group it serves
    pub(crate) group: String,
    /// The mended version, which copes with the poison message
    #[arg(long)]
    pub(crate) mended: bool,
}
