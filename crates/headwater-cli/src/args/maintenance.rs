//! Arguments of `backfill`, `maintain`, `audit`, `migrate` and `demo`.

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
    /// Start a backfill for a group; subscribing below the end and resurrecting start one by themselves
    ///
    /// Example: headwater backfill start orders audit --messages-max 500000
    Start(BackfillStartArgs),
    /// Cancel a backfill at once; what it has done stays
    ///
    /// Example: headwater backfill cancel orders audit
    Cancel(GroupArgs),
    /// Resume a cancelled or failed backfill at its checkpoint
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
    /// The most messages it covers: the last ones before the group subscribed
    #[arg(
        long,
        default_value_t = headwater::store::BackfillLimits::default().messages_max,
        value_parser = clap::value_parser!(u64).range(1..),
        allow_hyphen_values = true
    )]
    pub(crate) messages_max: u64,
    /// Its highest rate, in messages per second
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
    /// Do the work in this process, unless another process does it
    #[arg(long)]
    pub(crate) run: bool,
    /// With --run: how much load it may put on the database
    #[arg(long, requires = "run", value_parser = pace(), default_value = "standard")]
    pub(crate) pace: BackfillPace,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MaintainArgs {
    /// Only these jobs, separated by commas
    #[arg(long, value_name = "JOB,...", value_delimiter = ',', value_parser = job())]
    pub(crate) only: Vec<Job>,
    /// Run all jobs whenever they are due, until stopped
    #[arg(long, conflicts_with = "only")]
    pub(crate) watch: bool,
    /// How often jobs run and how much they do at a time
    #[arg(long, value_parser = maintenance_preset(), default_value = "standard")]
    pub(crate) preset: MaintenancePreset,
    /// Run nothing; show the statistics of the jobs over all processes
    #[arg(long, conflicts_with_all = ["only", "watch", "preset"])]
    pub(crate) status: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// The most entries to list
    #[arg(long, default_value_t = 100)]
    pub(crate) max: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MigrateArgs {
    /// Only show the version, change nothing
    #[arg(long)]
    pub(crate) status: bool,
    /// Install into an SQLite file that holds another application's tables
    #[arg(long)]
    pub(crate) adopt: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// The same scenario in a few seconds
    #[arg(long)]
    pub(crate) fast: bool,
}

/// Arguments that the demo starts its own processes with.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoWorkerArgs {
    /// The embedded store's file
    pub(crate) file: PathBuf,
    /// The group it serves
    pub(crate) group: String,
    /// The fixed version, which handles the poison message
    #[arg(long)]
    pub(crate) mended: bool,
}
