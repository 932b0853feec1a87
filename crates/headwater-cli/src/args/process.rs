//! Arguments of `process`.

use clap::Subcommand;
use headwater::process::ProcessStatus;

use super::Watch;
use super::group::Confirmation;
use super::words::process_status;

#[derive(Debug, Subcommand)]
pub(crate) enum ProcessCommand {
    /// List processes, newest first
    ///
    /// Examples:
    ///   headwater process list --status running
    ///   headwater process list --type order --max 20
    ///   headwater process list --parked
    #[command(verbatim_doc_comment)]
    List(ProcessListArgs),
    /// Show one process with its data and what happened last
    ///
    /// Examples:
    ///   headwater process show 0199a1b2-…
    ///   headwater process show --type order --key o-17
    #[command(verbatim_doc_comment)]
    Show(ProcessShowArgs),
    /// Show what happened to a process, newest first
    ///
    /// Example: headwater process log 0199a1b2-… --max 10
    Log(ProcessLogArgs),
    /// Pause a process: no further command is sent, and no time-out counts, until it is resumed
    ///
    /// Example: headwater process pause 0199a1b2-… --reason "stock is counted"
    Pause(ProcessReasonArgs),
    /// Resume a paused process where it was
    ///
    /// Example: headwater process resume 0199a1b2-…
    Resume(ProcessReasonArgs),
    /// Try again, now, what failed: a compensation that was given up, or a step that waits for its back-off
    ///
    /// Example: headwater process retry 0199a1b2-…
    Retry(ProcessOne),
    /// End a process as FAILED, at once; completed steps are not undone
    ///
    /// On a terminal it asks; elsewhere --yes is needed.
    ///
    /// Examples:
    ///   headwater process fail 0199a1b2-… --dry-run
    ///   headwater process fail 0199a1b2-… --reason "refunded by hand" --yes
    #[command(verbatim_doc_comment)]
    Fail(ProcessFailArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ProcessListArgs {
    /// Only those of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) process_type: Option<String>,
    /// Only those of this status
    #[arg(long, value_parser = process_status(), ignore_case = true)]
    pub(crate) status: Option<ProcessStatus>,
    /// Only those whose compensation failed: a person has to retry it, or to end them
    #[arg(long, conflicts_with_all = ["process_type", "status"])]
    pub(crate) parked: bool,
    /// The most to list
    #[arg(long, default_value_t = 100)]
    pub(crate) max: u32,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").args(["id", "key"]).required(true))]
pub(crate) struct ProcessShowArgs {
    /// The id of the process, as listed
    pub(crate) id: Option<uuid::Uuid>,
    /// The type of the process, with --key
    #[arg(long = "type", value_name = "TYPE", requires = "key")]
    pub(crate) process_type: Option<String>,
    /// The newest process with this business key
    #[arg(long, requires = "process_type")]
    pub(crate) key: Option<String>,
}

/// The process that is meant.
#[derive(Debug, clap::Args)]
pub(crate) struct ProcessOne {
    /// The id of the process, as listed
    pub(crate) id: uuid::Uuid,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ProcessLogArgs {
    #[command(flatten)]
    pub(crate) one: ProcessOne,
    /// The most entries to show; all if none is given
    #[arg(long)]
    pub(crate) max: Option<u32>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ProcessReasonArgs {
    #[command(flatten)]
    pub(crate) one: ProcessOne,
    /// Why, for its log
    #[arg(long, default_value = "")]
    pub(crate) reason: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ProcessFailArgs {
    #[command(flatten)]
    pub(crate) of: ProcessReasonArgs,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}
