//! Arguments of `pipeline`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Subcommand;

use super::Watch;
use super::group::Confirmation;

#[derive(Debug, Subcommand)]
pub(crate) enum PipelineCommand {
    /// Run a pipeline: all its services in this process, or some of them
    ///
    /// Without a configuration it makes a small world, stores everything in one directory and serves a page that shows it. A run that was
    /// interrupted is continued. With --ticks it ends once all ticks are indexed, else with SIGTERM or SIGINT, which let the services
    /// finish what they have in hand. Exits with 1 if a service failed.
    ///
    /// Examples:
    ///   headwater pipeline run --ticks 200
    ///   headwater pipeline run --ticks 200 --dir tides --quiet --output json
    ///   headwater pipeline run --config pipeline.toml --service environment-indexer
    #[command(verbatim_doc_comment)]
    Run(PipelineRunArgs),
    /// List runs, newest first
    ///
    /// Example: headwater pipeline runs
    Runs(PipelineRunsArgs),
    /// Drop a run: its topics, its index and its files
    ///
    /// Shows first what that is. On a terminal it asks; elsewhere --yes is needed. Refused while a process uses the run.
    ///
    /// Examples:
    ///   headwater pipeline drop newest --dry-run
    ///   headwater pipeline drop newest --yes
    #[command(verbatim_doc_comment)]
    Drop(PipelineDropArgs),
    /// List, start, stop, pause, resume and restart the services of a running pipeline
    ///
    /// Examples:
    ///   headwater pipeline service list
    ///   headwater pipeline service pause persistence
    #[command(subcommand, verbatim_doc_comment)]
    Service(PipelineServiceCommand),
    /// Check the files of runs
    ///
    /// Example: headwater pipeline storage check newest
    #[command(subcommand)]
    Storage(PipelineStorageCommand),
    /// Print the cells of a tick
    ///
    /// Examples:
    ///   headwater pipeline cells newest 10
    ///   headwater pipeline cells newest 10 --region 0-9,90-9 --output json
    #[command(verbatim_doc_comment)]
    Cells(PipelineCellsArgs),
    /// Operate claim checks: payloads that were too large for a message
    ///
    /// Example: headwater pipeline claims sweep
    #[command(subcommand)]
    Claims(PipelineClaimsCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PipelineServiceCommand {
    /// List services with their state
    ///
    /// Example: headwater pipeline service list --control 127.0.0.1:7413
    List(PipelineServiceListArgs),
    /// Start a service, or all that do not run
    ///
    /// Example: headwater pipeline service start persistence
    Start(PipelineServiceArgs),
    /// Stop a service, or all
    ///
    /// Example: headwater pipeline service stop persistence
    Stop(PipelineServiceArgs),
    /// Pause a service, or all: what is in hand is finished, nothing more is claimed
    ///
    /// Example: headwater pipeline service pause persistence
    Pause(PipelineServiceArgs),
    /// Resume a paused service, or all
    ///
    /// Example: headwater pipeline service resume persistence
    Resume(PipelineServiceArgs),
    /// Stop a service and start it again, or all
    ///
    /// Example: headwater pipeline service restart persistence
    Restart(PipelineServiceArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PipelineStorageCommand {
    /// Compare the files of a run with what was announced
    ///
    /// Files that are missing or damaged are errors: exits with 1. Those that a killed service left are harmless: their ticks are in other
    /// files too.
    ///
    /// Example: headwater pipeline storage check newest
    #[command(verbatim_doc_comment)]
    Check(PipelineOneRunArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PipelineClaimsCommand {
    /// Remove files of payloads whose message is gone
    ///
    /// Example: headwater pipeline claims sweep
    Sweep(PipelineSweepArgs),
}

/// Which pipeline is meant.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PipelineOf {
    /// The configuration; without it the built-in one, in the directory of --dir
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    pub(crate) config: Option<PathBuf>,
    /// The directory of a pipeline without a configuration
    #[arg(long, value_name = "DIR", default_value = "pipeline")]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PipelineRunArgs {
    #[command(flatten)]
    pub(crate) of: PipelineOf,
    /// How many ticks the source makes; without it until it is stopped, or as many as configured
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ticks: Option<u64>,
    /// Run only this service; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) service: Vec<String>,
    /// Serve the page and the query API on this port of 127.0.0.1, also after all ticks are indexed
    #[arg(long, value_name = "PORT", conflicts_with = "listen")]
    pub(crate) page: Option<u16>,
    /// The same on any address: every client that reaches it can read everything
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Where `pipeline service` reaches this process: an address of this machine
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) control: Option<SocketAddr>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PipelineRunsArgs {
    #[command(flatten)]
    pub(crate) of: PipelineOf,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PipelineOneRunArgs {
    /// The id of the run, or `newest`
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) of: PipelineOf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PipelineDropArgs {
    #[command(flatten)]
    pub(crate) one: PipelineOneRunArgs,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

/// Where the control API of a process is.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PipelineControl {
    #[command(flatten)]
    pub(crate) of: PipelineOf,
    /// The control API of the process, if it is not the configured one
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) control: Option<SocketAddr>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PipelineServiceListArgs {
    #[command(flatten)]
    pub(crate) at: PipelineControl,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").args(["service", "all"]).required(true))]
pub(crate) struct PipelineServiceArgs {
    /// The service, as listed
    pub(crate) service: Option<String>,
    /// All services of the process
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) at: PipelineControl,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PipelineCellsArgs {
    /// The id of the run, or `newest`
    pub(crate) run: String,
    /// The tick
    pub(crate) tick: i64,
    /// Only this region: first-last of each axis; a torus may be crossed, as in 90-9
    #[arg(long, value_name = "FIRST-LAST,…")]
    pub(crate) region: Option<String>,
    /// Only molecules of this type
    #[arg(long = "type", value_name = "NUMBER")]
    pub(crate) molecule_type: Option<u32>,
    /// Only cells of this owner
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<u64>,
    #[command(flatten)]
    pub(crate) of: PipelineOf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PipelineSweepArgs {
    /// Only this run, or `newest`; all runs if none is given
    pub(crate) run: Option<String>,
    #[command(flatten)]
    pub(crate) of: PipelineOf,
}
