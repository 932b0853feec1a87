//! The `headwater` command. One match shows the program; each command has a file of its name.

mod args;
mod audit;
mod backfill;
mod consume;
mod dead_letter;
mod demo;
mod doctor;
mod group;
mod human;
mod maintain;
mod migrate;
mod output;
mod progress;
mod publish;
mod stop;
mod topic;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use args::{Args, Command};

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    // Logs go to stderr, from warnings on. The demo causes itself what the warnings are about, and shows it.
    let level = if matches!(args.command, Command::Demo(_)) { "error" } else { "warn" };
    let filter = tracing_subscriber::EnvFilter::try_from_env("HEADWATER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(args).await {
        Ok(code) => code,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr is closed, the exit code still reports the failure.
            let _ = writeln!(std::io::stderr(), "error: {}", output::explain(&error));
            // An invalid value has the same exit code whether the command or the library refuses it.
            let is_wrong = error.is::<output::Usage>()
                || output::kind(&error) == Some(headwater::ErrorKind::InvalidInput);
            if is_wrong { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

async fn run(args: Args) -> Result<ExitCode> {
    match &args.command {
        Command::Topic(command) => topic::run(&args.global, command).await,
        Command::Publish(command) => publish::run(&args.global, command).await,
        Command::Consume(command) => consume::run(&args.global, command).await,
        Command::Group(command) => group::run(&args.global, command).await,
        Command::DeadLetter(command) => dead_letter::run(&args.global, command).await,
        Command::Migrate(command) => migrate::run(&args.global, command).await,
        Command::Backfill(command) => backfill::run(&args.global, command).await,
        Command::Maintain(command) => maintain::run(&args.global, command).await,
        Command::Audit(command) => audit::run(&args.global, command).await,
        Command::Doctor => doctor::run(&args.global).await,
        Command::Demo(command) => demo::run(&args.global, command).await,
        Command::DemoWorker(command) => demo::worker::run(command).await,
    }
}
