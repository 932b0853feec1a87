//! The arguments of the command line; those of each command are in a file of its name.

mod bridge;
mod context;
mod cron;
mod dead_letter;
mod global;
mod group;
mod maintenance;
mod message;
mod messages;
mod outbox;
mod parked;
mod pipeline;
mod process;
mod relay;
mod scheduled;
mod serve;
mod subscribe;
mod token;
mod top;
mod topic;
pub(crate) mod words;

use clap::{CommandFactory, Parser, Subcommand};

pub(crate) use bridge::{BridgeCommand, BridgeRunArgs};
pub(crate) use context::{CompletionsArgs, ContextAddArgs, ContextCommand, ManArgs};
pub(crate) use cron::CronCommand;
pub(crate) use dead_letter::{
    DeadLetterChoice, DeadLetterCommand, DeadLetterFilter, DeadLetterListArgs, DeadLetterOf,
    DeadLetterPurgeArgs, DeadLetterRedriveArgs, DeadLetterShowArgs,
};
pub(crate) use global::{Global, Output};
pub(crate) use group::{
    AcksArgs, CancelArgs, Confirmation, ForceCompleteArgs, GroupArgs, GroupCommand, GroupListArgs,
    GroupPauseArgs, GroupShowArgs, PolicyArgs, PolicyValue, RecordsArgs, ReleaseLeaseArgs, RemoveArgs,
    ResurrectArgs, SeekArgs, StuckArgs,
};
pub(crate) use maintenance::{
    AuditArgs, BackfillCommand, BackfillListArgs, BackfillWatchArgs, DemoArgs, DemoWorkerArgs, MaintainArgs,
    MigrateArgs,
};
pub(crate) use message::{MessageActArgs, MessageAt, MessageCommand, MessageShowArgs};
pub(crate) use messages::{ConsumeArgs, PeekArgs, PublishArgs};
pub(crate) use outbox::{OutboxCommand, OutboxListArgs, OutboxOne, OutboxRecoverArgs, OutboxRequeueArgs};
pub(crate) use parked::{ParkedCommand, ParkedDeleteArgs, ParkedListArgs, ParkedOne, ParkedThese};
pub(crate) use pipeline::{
    PipelineCellsArgs, PipelineClaimsCommand, PipelineCommand, PipelineControl, PipelineDropArgs, PipelineOf,
    PipelineOneRunArgs, PipelineRunArgs, PipelineServiceArgs, PipelineServiceCommand, PipelineStorageCommand,
    PipelineSweepArgs,
};
pub(crate) use process::{
    ProcessCommand, ProcessFailArgs, ProcessListArgs, ProcessLogArgs, ProcessOne, ProcessReasonArgs,
    ProcessShowArgs,
};
pub(crate) use relay::{RelayAddArgs, RelayCommand, RelayOne, RelayRunArgs};
pub(crate) use scheduled::{ScheduledCommand, ScheduledListArgs, ScheduledMoveArgs, ScheduledOne};
pub(crate) use serve::ServeArgs;
pub(crate) use subscribe::SubscribeArgs;
pub(crate) use token::{TokenCommand, TokenCreateArgs, TokenOne, TokenRevokeArgs, TokenRotateArgs};
pub(crate) use top::{TopArgs, TopSort};
pub(crate) use topic::{
    SettingsArgs, StorageWord, Switch, TopicAlterArgs, TopicCommand, TopicCreateArgs, TopicListArgs,
    TopicRemoveArgs,
};

/// Durable messaging that lives in the database you already have.
///
/// Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed or a problem was found, 2 wrong usage
/// or an invalid value, 3 nothing (consume --fail-if-empty) or nothing but what needs attention (doctor).
/// HEADWATER_LOG sets what is logged (error, warn, info, debug, or headwater=debug); the default is warn.
#[derive(Debug, Parser)]
#[command(name = "headwater", version, max_term_width = 110)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the HTTP API and the dashboard, and run maintenance
    ///
    /// Creates the store if it is missing. On an address of this machine it needs no token as long as there is none; on any other
    /// address it refuses to start without one: see `headwater token create`. SIGTERM and SIGINT shut it down gracefully.
    ///
    /// Examples:
    ///   headwater serve --demo
    ///   headwater serve --listen 127.0.0.1:7411 --label shop
    ///   headwater serve --listen 0.0.0.0:7411 --tls-cert shop.pem --tls-key shop.key
    #[command(verbatim_doc_comment)]
    Serve(ServeArgs),
    /// Watch topics, groups, lag, rates and health live in the terminal
    ///
    /// Keys: s sorts, / filters, t chooses topics or groups, p freezes, q quits. Without a terminal, or with --output json, figures
    /// are printed once.
    ///
    /// Examples:
    ///   headwater top
    ///   headwater top --filter orders --sort health
    #[command(verbatim_doc_comment)]
    Top(TopArgs),
    /// Create, list, rotate and revoke tokens: what programs and people need to use the server
    ///
    /// Examples:
    ///   headwater token create shop --scope publish --topic 'orders*'
    ///   headwater token list
    #[command(subcommand, verbatim_doc_comment)]
    Token(TokenCommand),
    /// Create, change, show, list, purge and delete topics
    ///
    /// Examples:
    ///   headwater topic create payments --preset critical --message-retention 14d
    ///   headwater topic alter orders --max-retention none
    #[command(subcommand, verbatim_doc_comment)]
    Topic(TopicCommand),
    /// Publish messages: an argument, or one per line of stdin
    ///
    /// Examples:
    ///   headwater publish orders '{"n":1}' --key o-1
    ///   seq 1000 | headwater publish orders
    ///   headwater publish orders --json-lines < messages.jsonl
    #[command(verbatim_doc_comment)]
    Publish(PublishArgs),
    /// Consume messages as a member of a group: print each or run a command for it, then ack it
    ///
    /// Into a pipe messages are written one at a time, and each is acked once the reader has taken it: with `| head -1` the
    /// rest stays for the next consumer.
    /// SIGTERM and SIGINT shut it down gracefully: the current batch is printed and acked, the rest is released at once.
    ///
    /// Examples:
    ///   headwater consume orders --group email --max 1
    ///   headwater consume orders --group audit --create --from beginning --output json
    ///   headwater consume orders --group email --exec './send-mail' --concurrency 4
    ///
    /// A command of --exec gets the payload on stdin, and in its environment HEADWATER_TOPIC, _GROUP, _OFFSET, _MESSAGE_ID,
    /// _ATTEMPT, _CREATED_AT, _PAYLOAD_BYTES; _KEY, _TYPE, _CONTENT_TYPE, _CORRELATION_ID if the message has them; and each
    /// header as HEADWATER_HEADER_NAME, in upper case with _ for all but A-Z and 0-9.
    #[command(verbatim_doc_comment)]
    Consume(ConsumeArgs),
    /// Print messages of a topic without consuming them: no group, no ack, nothing is changed
    ///
    /// Starts at an offset, a time or the last messages, and ends with the last message unless --follow is given.
    ///
    /// Examples:
    ///   headwater peek orders --from bounded:10
    ///   headwater peek orders --from time:2026-01-31T12:00:00Z --key o-1 --output json
    ///   headwater peek orders --from beginning --follow
    #[command(verbatim_doc_comment)]
    Peek(PeekArgs),
    /// Show the state and health of groups, and operate them
    ///
    /// Examples:
    ///   headwater group list orders
    ///   headwater group seek orders email --to 2026-01-31T12:00:00Z --dry-run
    #[command(subcommand, verbatim_doc_comment)]
    Group(GroupCommand),
    /// List, show, redrive and purge dead letters: the messages a group gave up on
    ///
    /// Examples:
    ///   headwater dead-letter list
    ///   headwater dead-letter redrive orders --group email --error-contains "timed out" --rate 100/s
    #[command(subcommand, verbatim_doc_comment)]
    DeadLetter(DeadLetterCommand),
    /// List, show, requeue and recover outbox entries: what is to be sent to an external broker
    ///
    /// Examples:
    ///   headwater outbox list --status PARKED
    ///   headwater outbox requeue 2
    #[command(subcommand, verbatim_doc_comment)]
    Outbox(OutboxCommand),
    /// List, show, redrive and delete dead letters of no group: outbox entries without an attempt left, and parked commands
    ///
    /// Example: headwater parked list
    #[command(subcommand)]
    Parked(ParkedCommand),
    /// Relay topics and the outbox to brokers, webhooks and other stores: register, run and check relays
    ///
    /// Examples:
    ///   headwater relay add orders --to 'https://hooks.example.com/orders#secret=${HOOK_SECRET}'
    ///   headwater relay run
    #[command(subcommand, verbatim_doc_comment)]
    Relay(RelayCommand),
    /// Bridge Kafka, RabbitMQ or NATS into a topic: run a bridge, list positions
    ///
    /// Example: headwater bridge list
    #[command(subcommand)]
    Bridge(BridgeCommand),
    /// List, cancel and move scheduled messages: those that are not due yet
    ///
    /// Examples:
    ///   headwater scheduled list reminders
    ///   headwater scheduled move reminders 0199a1b2-… --delay 2h
    #[command(subcommand, verbatim_doc_comment)]
    Scheduled(ScheduledCommand),
    /// Show one message and its state in each group; skip it, bury it, or retry it now
    ///
    /// Examples:
    ///   headwater message show orders 1
    ///   headwater message skip orders 3 --group email
    #[command(subcommand, verbatim_doc_comment)]
    Message(MessageCommand),
    /// List and show processes (sagas); pause, resume, retry and fail them
    ///
    /// Examples:
    ///   headwater process list --type order
    ///   headwater process log 0199a1b2-…
    #[command(subcommand, verbatim_doc_comment)]
    Process(ProcessCommand),
    /// Run a pipeline from numbered snapshots to an index, and operate its runs and services
    ///
    /// Its store is in its configuration or below --dir: --store and --context do not apply.
    ///
    /// Examples:
    ///   headwater pipeline run --ticks 200
    ///   headwater pipeline runs
    #[command(subcommand, verbatim_doc_comment)]
    Pipeline(PipelineCommand),
    /// List, start, cancel, resume and watch backfills: adding a late group to the records of messages published before it
    ///
    /// Examples:
    ///   headwater backfill list
    ///   headwater backfill watch orders audit --run
    #[command(subcommand, verbatim_doc_comment)]
    Backfill(BackfillCommand),
    /// List cron jobs
    ///
    /// Example: headwater cron list
    #[command(subcommand)]
    Cron(CronCommand),
    /// Create the schema, or bring it to this program's version
    ///
    /// The embedded file migrates by itself. A missing PostgreSQL schema is also created by `headwater publish` and `topic create`, an
    /// older one is upgraded only here.
    ///
    /// Example: headwater migrate --store postgres://localhost/shop
    Migrate(MigrateArgs),
    /// Run the maintenance jobs once or until stopped, or show their statistics
    ///
    /// Exits with 1 if a job failed; the other jobs still run. With --watch one process per namespace is elected to do the
    /// work, and another takes over within 15 s if it dies; SIGTERM and SIGINT shut it down gracefully.
    ///
    /// Examples:
    ///   headwater maintain
    ///   headwater maintain --only dead_detection,message_cleanup
    ///   headwater maintain --watch --preset critical
    ///   headwater maintain --watch --every message_cleanup=1m,survey=30s --messages-max 5000
    ///   headwater maintain --status --output json
    #[command(verbatim_doc_comment)]
    Maintain(MaintainArgs),
    /// List audit entries: what operators changed, newest first
    ///
    /// Example: headwater audit --max 20
    Audit(AuditArgs),
    /// Check every invariant of the store, and find what needs an operator although the store is sound
    ///
    /// An `error` is a broken invariant; `attention` is what does not improve by itself, such as a group that no process
    /// serves or maintenance that does not run. Each comes with what to do. Exits with 0 if it finds nothing, with 1 if it
    /// finds an error, and with 3 if it finds only what needs attention.
    ///
    /// Example: headwater doctor --output json
    #[command(verbatim_doc_comment)]
    Doctor,
    /// Name stores, so that `--context prod` replaces a URL; ask before changes in production
    ///
    /// A command uses the first store that is given: --store, --context, HEADWATER_STORE, HEADWATER_CONTEXT, the context in use.
    ///
    /// Examples:
    ///   headwater context add prod postgres://ann@db/shop --production
    ///   headwater context use staging
    ///   headwater group list --context staging
    #[command(subcommand, verbatim_doc_comment)]
    Context(ContextCommand),
    /// Print a script that completes this command in a shell
    ///
    /// Examples:
    ///   headwater completions bash > headwater.bash
    ///   headwater completions zsh > _headwater
    ///   headwater completions fish > headwater.fish
    #[command(verbatim_doc_comment)]
    Completions(CompletionsArgs),
    /// Write man pages: one for the command, one for each of its commands
    ///
    /// Example: headwater man --dir man1
    Man(ManArgs),
    /// Watch Headwater work for a minute: groups in separate processes, a crash, a poison message, a late group
    ///
    /// It uses an embedded store in a temporary directory, which it removes at the end. Every claim it prints is checked in
    /// the store; it exits with 1 if a claim does not hold.
    ///
    /// Example: headwater demo --fast
    #[command(verbatim_doc_comment)]
    Demo(DemoArgs),
    /// One group of the demo.
    #[command(hide = true)]
    DemoWorker(DemoWorkerArgs),
}

/// The id of `--watch` of lists; `maintain --watch` is another option.
pub(crate) const WATCH: &str = "watch_every";

/// Shows a list again and again.
#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    /// List again every so often, until stopped
    #[arg(id = WATCH, long = "watch", value_name = "EVERY", value_parser = words::every, allow_hyphen_values = true)]
    every: Option<std::time::Duration>,
}

/// The command line as it was given; ends the process if it is wrong.
pub(crate) fn matches() -> clap::ArgMatches {
    let colours = match std::env::args_os().any(|arg| arg == "--no-color") {
        true => clap::ColorChoice::Never,
        false => clap::ColorChoice::Auto,
    };
    command().color(colours).get_matches()
}

/// The arguments of the innermost command.
pub(crate) fn leaf(given: &clap::ArgMatches) -> &clap::ArgMatches {
    given.subcommand().map_or(given, |(_, inner)| leaf(inner))
}

/// The names of the commands down to the innermost.
pub(crate) fn path(given: &clap::ArgMatches) -> Vec<&str> {
    let (mut path, mut at) = (Vec::new(), given);
    while let Some((name, inner)) = at.subcommand() {
        path.push(name);
        at = inner;
    }
    path
}

/// The whole command line, as it is parsed, documented and completed.
pub(crate) fn command() -> clap::Command {
    let command = Args::command();
    let command = on_every_level(command, |level| {
        // `--max -1` is a wrong value of `--max`, and not an option `-1`.
        level.mut_args(|arg| match arg.get_action().takes_values() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        })
    });
    // What is not given stays: a default would be misleading.
    at(command, &["topic", "alter"], |alter| alter.mut_args(without_default))
}

/// Changes one command and keeps its place in the help.
fn at(
    command: clap::Command,
    path: &'static [&'static str],
    change: fn(clap::Command) -> clap::Command,
) -> clap::Command {
    let Some((name, path)) = path.split_first() else { return change(command) };
    command.mut_subcommands(|inner| if inner.get_name() == *name { at(inner, path, change) } else { inner })
}

fn on_every_level(command: clap::Command, change: fn(clap::Command) -> clap::Command) -> clap::Command {
    change(command).mut_subcommands(|inner| on_every_level(inner, change))
}

fn without_default(arg: clap::Arg) -> clap::Arg {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    match help.split_once(" [default: ") {
        Some((kept, _)) => {
            let kept = kept.to_owned();
            arg.help(kept)
        }
        None => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    /// The help of every command has an example to copy.
    #[test]
    fn every_command_shows_an_example() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command.get_long_about().or(command.get_about()).map(ToString::to_string);
            let help = help.unwrap_or_default();
            let shown = help.contains("Example") && help.contains(path.trim());
            assert!(command.is_hide_set() || shown, "{path}: {help}");
            command
                .get_subcommands()
                .filter(|inner| inner.get_name() != "help")
                .for_each(|inner| check(inner, &path));
        }
        command().get_subcommands().for_each(|command| check(command, "headwater"));
    }

    /// An example is copied as it is shown: no terminal of usual width breaks it.
    #[test]
    fn examples_are_short() {
        fn check(command: &clap::Command) {
            let help = command.get_long_about().map(ToString::to_string).unwrap_or_default();
            for line in help.lines().filter(|line| line.contains("headwater ")) {
                let is_example = line.trim().starts_with("headwater ") || line.starts_with("Example: ");
                assert!(!is_example || line.len() <= 100, "{line}");
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
    }

    #[test]
    fn altering_shows_no_defaults() {
        let command = command();
        let help = |path: [&str; 2]| {
            let inner = path.iter().try_fold(&command, |at, name| at.find_subcommand(name)).unwrap();
            inner.clone().render_long_help().to_string()
        };
        assert!(help(["topic", "create"]).contains("[default: 24h]"));
        assert!(!help(["topic", "alter"]).contains("[default: 24h]"));
    }
}
