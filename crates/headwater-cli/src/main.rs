//! The `headwater` command. One match shows the program; each command has a file of its name.

mod args;
mod audit;
mod backfill;
mod bridge;
mod confirm;
mod consume;
mod context;
mod cron;
mod dead_letter;
mod demo;
mod doctor;
mod documents;
mod group;
mod human;
mod json_line;
mod logging;
mod maintain;
mod message;
mod migrate;
mod outbox;
mod output;
mod parked;
mod peek;
mod pipeline;
mod process;
mod progress;
mod publish;
mod reader;
mod relay;
mod scheduled;
mod serve;
mod stop;
mod suggest;
mod token;
mod top;
mod topic;
mod watch;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{ArgMatches, FromArgMatches};

use args::{Args, Command};

#[tokio::main]
async fn main() -> ExitCode {
    let given = args::matches();
    let mut args = Args::from_arg_matches(&given).unwrap_or_else(|error| error.exit());
    if args.global.quiet {
        output::be_quiet();
    }
    match run(&mut args, &given).await {
        Ok(code) => code,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let meant = suggest::meant(&args.global, args::leaf(&given), &error).await;
            // If stderr is closed, the exit code still reports the failure.
            let _ = writeln!(std::io::stderr(), "error: {}{meant}", output::explain(&error));
            // An invalid value has the same exit code whether the command or the library refuses it.
            let is_wrong = error.is::<output::Usage>()
                || output::kind(&error) == Some(headwater::ErrorKind::InvalidInput);
            if is_wrong { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

async fn run(args: &mut Args, given: &ArgMatches) -> Result<ExitCode> {
    logging::start(&args.global, level(&args.command))?;
    context::apply(args, given)?;
    context::confirm(args, given)?;
    match args::leaf(given).try_get_one::<Duration>(args::WATCH) {
        Ok(Some(every)) => watch::repeat(args, *every).await,
        _ => act(args).await,
    }
}

/// What a command logs unless a setting says otherwise.
fn level(command: &Command) -> &'static str {
    match command {
        // Demos cause themselves what the warnings are about, and show it; lines of a log would garble a live view.
        Command::Demo(_) | Command::Top(_) => "error",
        // One of its processes waits for a person on purpose.
        Command::Serve(args) if args.demo => "error,headwater::process::manager=off",
        _ => "warn",
    }
}

/// Does what the command says, once.
async fn act(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Serve(command) => serve::run(&args.global, command).await,
        Command::Top(command) => top::run(&args.global, command).await,
        Command::Token(command) => token::run(&args.global, command).await,
        Command::Topic(command) => topic::run(&args.global, command).await,
        Command::Publish(command) => publish::run(&args.global, command).await,
        Command::Consume(command) => consume::run(&args.global, command).await,
        Command::Peek(command) => peek::run(&args.global, command).await,
        Command::Group(command) => group::run(&args.global, command).await,
        Command::DeadLetter(command) => dead_letter::run(&args.global, command).await,
        Command::Outbox(command) => outbox::run(&args.global, command).await,
        Command::Parked(command) => parked::run(&args.global, command).await,
        Command::Relay(command) => relay::run(&args.global, command).await,
        Command::Bridge(command) => bridge::run(&args.global, command).await,
        Command::Scheduled(command) => scheduled::run(&args.global, command).await,
        Command::Message(command) => message::run(&args.global, command).await,
        Command::Process(command) => process::run(&args.global, command).await,
        Command::Pipeline(command) => pipeline::run(&args.global, command).await,
        Command::Cron(command) => cron::run(&args.global, command).await,
        Command::Migrate(command) => migrate::run(&args.global, command).await,
        Command::Backfill(command) => backfill::run(&args.global, command).await,
        Command::Maintain(command) => maintain::run(&args.global, command).await,
        Command::Audit(command) => audit::run(&args.global, command).await,
        Command::Doctor => doctor::run(&args.global).await,
        Command::Context(command) => context::run(&args.global, command),
        Command::Completions(command) => documents::completions(command),
        Command::Man(command) => documents::man(command),
        Command::Demo(command) => demo::run(&args.global, command).await,
        Command::DemoWorker(command) => demo::worker::run(command).await,
    }
}
