//! The arguments of the command line; those of each command are in a file of its name.

mod dead_letter;
mod group;
mod maintenance;
mod messages;
mod topic;
pub(crate) mod words;

use std::io::Write;

use anyhow::{Result, anyhow, bail};
use clap::{Parser, Subcommand, ValueEnum};
use headwater::store::{SqlitePath, StoreUrl};
use headwater::{ErrorKind, Headwater, OpenOptions};

use crate::output::{explain, with_hint};

pub(crate) use dead_letter::{
    DeadLetterCommand, DeadLetterFilter, DeadLetterListArgs, DeadLetterOf, DeadLetterPurgeArgs,
    DeadLetterRedriveArgs, DeadLetterShowArgs,
};
pub(crate) use group::{
    AcksArgs, CancelArgs, ForceCompleteArgs, GroupArgs, GroupCommand, GroupShowArgs, Meant, PolicyArgs,
    PolicyValue, RecordsArgs, ReleaseLeaseArgs, RemoveArgs, ResurrectArgs, SeekArgs, StuckArgs,
    SubscribeArgs, TopicArgs,
};
pub(crate) use maintenance::{
    AuditArgs, BackfillCommand, BackfillListArgs, BackfillWatchArgs, DemoArgs, DemoWorkerArgs, MaintainArgs,
    MigrateArgs,
};
pub(crate) use messages::{ConsumeArgs, PublishArgs};
pub(crate) use topic::{SettingsArgs, StorageWord, Switch, TopicAlterArgs, TopicCommand, TopicCreateArgs};

/// Durable messaging that lives in the database you already have.
///
/// Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed or a problem was found, 2 wrong usage
/// or an invalid value.
/// HEADWATER_LOG sets the log level (error, warn, info, debug); the default is warn.
#[derive(Debug, Parser)]
#[command(name = "headwater", version, max_term_width = 110)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// Where the messages are stored: sqlite:PATH or postgres://USER@HOST/DATABASE
    #[arg(
        long,
        global = true,
        env = "HEADWATER_STORE",
        default_value = "sqlite:headwater.db",
        hide_env_values = true
    )]
    pub(crate) store: String,
    /// An isolated set of topics: a schema on PostgreSQL, a file of its own beside PATH on SQLite
    #[arg(long, global = true, env = "HEADWATER_NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// How results are printed
    #[arg(long, global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

/// For people, or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Table,
    /// One JSON object per line
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create, change, show and list topics
    ///
    /// Examples:
    ///   headwater topic create orders --preset critical --message-retention 14d
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
    /// Consume messages as a member of a group: print each, then ack it
    ///
    /// SIGTERM and SIGINT shut it down gracefully: the current batch is printed and acked, the rest is released at once.
    ///
    /// Examples:
    ///   headwater consume orders --group email --max 1
    ///   headwater consume orders --group audit --from beginning --output json
    #[command(verbatim_doc_comment)]
    Consume(ConsumeArgs),
    /// Show the state and health of groups, and operate them
    ///
    /// Examples:
    ///   headwater group list orders
    ///   headwater group seek orders email --to time:2026-01-31T12:00:00Z --dry-run
    #[command(subcommand, verbatim_doc_comment)]
    Group(GroupCommand),
    /// List, show, redrive and purge dead letters: the messages a group gave up on
    ///
    /// Examples:
    ///   headwater dead-letter list orders --group email
    ///   headwater dead-letter redrive orders --group email --error-contains "timed out"
    #[command(subcommand, verbatim_doc_comment)]
    DeadLetter(DeadLetterCommand),
    /// List, start, cancel, resume and watch backfills: adding a late group to the records of messages published before it
    ///
    /// Examples:
    ///   headwater backfill list
    ///   headwater backfill watch orders audit --run
    #[command(subcommand, verbatim_doc_comment)]
    Backfill(BackfillCommand),
    /// Create the schema, or bring it to this program's version
    ///
    /// The embedded file migrates by itself; a missing PostgreSQL schema is created on first use, an older one only here.
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
    ///   headwater maintain --status --output json
    #[command(verbatim_doc_comment)]
    Maintain(MaintainArgs),
    /// List audit entries: what operators changed, newest first
    ///
    /// Example: headwater audit --max 20
    Audit(AuditArgs),
    /// Check every invariant of the store and show how to repair what is wrong; exits with 1 if it finds a problem
    ///
    /// Example: headwater doctor --output json
    Doctor,
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

impl Global {
    /// The options that every command opens the store with.
    pub(crate) fn options(&self) -> OpenOptions {
        let options = OpenOptions::default().actor(actor());
        match &self.namespace {
            Some(namespace) => options.namespace(namespace),
            None => options,
        }
    }

    pub(crate) fn store_url(&self) -> Result<StoreUrl> {
        Ok(StoreUrl::parse(&self.store, self.namespace.as_deref())?)
    }

    /// Opens an existing store. A missing embedded file is refused: a command that only reads, or a mistyped name, must not
    /// create one.
    pub(crate) async fn open(&self, options: OpenOptions) -> Result<Headwater> {
        let StoreUrl::Sqlite(SqlitePath::File(path)) = self.store_url()? else {
            return self.create(options).await;
        };
        if path.try_exists().is_ok_and(|exists| !exists) {
            bail!(
                "no store at {}; `headwater publish` or `headwater topic create` creates one",
                path.display()
            );
        }
        let unwritable = |error: &anyhow::Error| {
            let kind = error.downcast_ref::<headwater::Error>().map(headwater::Error::kind);
            matches!(kind, Some(ErrorKind::ReadOnly | ErrorKind::PermissionDenied))
        };
        match self.create(options.clone()).await {
            // Commands that only read still work; a write is refused with the reason.
            Err(error) if unwritable(&error) => match self.create(options.read_only(true)).await {
                Ok(headwater) => {
                    // Not `eprintln!`: it panics when the other end of stderr is closed.
                    let _ = writeln!(std::io::stderr(), "opened read-only: {error:#}");
                    Ok(headwater)
                }
                Err(unread) => {
                    let unread = explain(&unread);
                    Err(anyhow!("{}; it cannot be opened read-only either: {unread}", explain(&error)))
                }
            },
            opened => opened,
        }
    }

    /// Opens the store, and creates it if it is missing.
    pub(crate) async fn create(&self, options: OpenOptions) -> Result<Headwater> {
        let opened = Headwater::open_with(&self.store, options).await;
        opened.map_err(|error| {
            with_hint(error.into(), |error| {
                let is_foreign = error.kind() == ErrorKind::NotAStore && error.to_string().contains("adopt");
                is_foreign.then(|| "`headwater migrate --adopt` installs into it".into())
            })
        })
    }
}

/// The user and host for audit entries, as far as the environment shows them.
fn actor() -> String {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let user = user.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("cli {user}@{host}")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
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
        Args::command().get_subcommands().for_each(|command| check(command, "headwater"));
    }
}
