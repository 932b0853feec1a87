//! Arguments of `backfill`, `maintain`, `audit`, `migrate` and `demo`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use headwater::maintenance::{Job, MaintenancePreset, MaintenanceSettings};
use headwater::store::BackfillPace;

use super::Watch;
use super::group::GroupArgs;
use super::words::{Retention, duration, interval, job, maintenance_preset, pace, retention};

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
    #[command(flatten)]
    pub(crate) watch: Watch,
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
    /// The most messages in one transaction; the default is measured
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), allow_hyphen_values = true)]
    pub(crate) batch_max: Option<u32>,
    /// It slows down while a small piece of work of an application takes longer than this
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) target_latency: Option<Duration>,
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

/// What has no meaning where nothing runs.
const SETTINGS: [&str; 7] = [
    "only",
    "watch",
    "preset",
    "messages_max",
    "subscription_retention",
    "inbox_retention",
    "outbox_retention",
];

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
    /// With --watch: how often single jobs run, if it differs from the preset
    #[arg(long, requires = "watch", value_name = "JOB=DURATION,...", value_delimiter = ',', value_parser = interval)]
    pub(crate) every: Vec<(Job, Duration)>,
    /// How many messages one step changes at most, if it differs from the preset
    #[arg(long, value_name = "N")]
    pub(crate) messages_max: Option<u32>,
    /// How long cancelled and dead groups are kept before they are deleted; 30 days by default
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) subscription_retention: Option<Duration>,
    /// How long inbox entries are kept; 30 days by default
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) inbox_retention: Option<Duration>,
    /// How long published outbox entries are kept; 7 days by default
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) outbox_retention: Option<Duration>,
    /// How long processes (sagas) that ended are kept with their logs, or forever; 90 days by default
    #[arg(long, value_name = "DURATION", value_parser = retention)]
    pub(crate) process_retention: Option<Retention>,
    /// Run nothing; show the statistics of the jobs over all processes
    #[arg(long, conflicts_with_all = SETTINGS)]
    pub(crate) status: bool,
}

impl MaintainArgs {
    /// The preset's values, with those changed that are given.
    pub(crate) fn settings(&self) -> headwater::Result<MaintenanceSettings> {
        let mut settings = MaintenanceSettings::preset(self.preset);
        for (job, interval) in &self.every {
            settings = settings.every(*job, *interval)?;
        }
        if let Some(messages) = self.messages_max {
            settings = settings.messages_max(messages)?;
        }
        if let Some(retention) = self.subscription_retention {
            settings = settings.subscription_retention(retention)?;
        }
        if let Some(retention) = self.inbox_retention {
            settings = settings.inbox_retention(retention)?;
        }
        if let Some(retention) = self.outbox_retention {
            settings = settings.outbox_retention(retention)?;
        }
        if let Some(retention) = self.process_retention {
            settings = settings.process_retention(retention.duration())?;
        }
        Ok(settings)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// The most entries to list
    #[arg(long, default_value_t = 100)]
    pub(crate) max: u32,
    #[command(flatten)]
    pub(crate) watch: Watch,
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
