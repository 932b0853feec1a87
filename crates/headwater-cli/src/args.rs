//! What the command line takes.

use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use headwater::{Headwater, OpenOptions};

/// Durable messaging that lives in the database you already have.
///
/// Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed or doctor found something, 2 wrong usage.
/// HEADWATER_LOG sets what is logged (error, warn, info, debug); the default is warn.
#[derive(Debug, Parser)]
#[command(name = "headwater", version, max_term_width = 110)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options every command takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// Where the messages live: sqlite:PATH or postgres://USER@HOST/DATABASE
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

/// For people, or for pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Table,
    /// One JSON object a line
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create and list topics
    ///
    /// Example: headwater topic create orders --pub-sub
    #[command(subcommand)]
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
    /// SIGTERM and SIGINT end it in order: the batch in hand is printed and acked, the rest is given back at once.
    ///
    /// Examples:
    ///   headwater consume orders --group email --max 1
    ///   headwater consume orders --group audit --from beginning --output json
    #[command(verbatim_doc_comment)]
    Consume(ConsumeArgs),
    /// See how far groups are, and what they hold or wait for
    ///
    /// Examples:
    ///   headwater group list orders
    ///   headwater group show orders email --output json
    #[command(subcommand, verbatim_doc_comment)]
    Group(GroupCommand),
    /// List, show, redrive and purge the messages a group gave up on
    ///
    /// Examples:
    ///   headwater dead-letter list orders --group email
    ///   headwater dead-letter redrive orders --group email --error-contains "timed out"
    #[command(subcommand, verbatim_doc_comment)]
    DeadLetter(DeadLetterCommand),
    /// Create the schema, or bring it to this program's version
    ///
    /// The embedded file migrates by itself; a missing PostgreSQL schema is created on first use, an older one only here.
    ///
    /// Example: headwater migrate --store postgres://localhost/shop
    Migrate(MigrateArgs),
    /// One round of upkeep: heads, late rows, due messages, old dedup keys
    ///
    /// Example: headwater maintain
    Maintain,
    /// Check every invariant of the store; exits with 1 if something is off
    ///
    /// Example: headwater doctor --output json
    Doctor,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TopicCommand {
    /// Create a topic; fine if it is there with the same settings
    ///
    /// Example: headwater topic create orders --pub-sub --lease 30s
    Create(TopicCreateArgs),
    /// List topics
    ///
    /// Example: headwater topic list --output json
    List,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TopicCreateArgs {
    /// Its name
    pub(crate) name: String,
    /// Every group gets every message; without it the topic is a queue with one group
    #[arg(long)]
    pub(crate) pub_sub: bool,
    /// Keep strict order among messages of one key
    #[arg(long)]
    pub(crate) ordered: bool,
    /// Into how many lanes ordered groups are split
    #[arg(long, requires = "ordered", default_value_t = 16)]
    pub(crate) lanes: u16,
    /// How long a hand-out lasts; 0s means it is never reassigned by itself
    #[arg(long, default_value = "300s", value_parser = duration)]
    pub(crate) lease: Duration,
    /// How often a message is handed out before it is buried
    #[arg(long, default_value_t = 10)]
    pub(crate) max_attempts: u32,
    /// The largest payload, in bytes
    #[arg(long, default_value_t = headwater::limits::PAYLOAD_BYTES_DEFAULT)]
    pub(crate) payload_bytes_max: usize,
    /// How long a dedup key is remembered
    #[arg(long, default_value = "10m", value_parser = duration)]
    pub(crate) dedup_window: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PublishArgs {
    /// The topic; created as a queue if it does not exist
    pub(crate) topic: String,
    /// The payload; without it stdin is read, one message per line
    pub(crate) payload: Option<String>,
    /// Each line of stdin is an object: {"payload": …, "key": …, "type": …, "headers": {…}, "dedup_key": …}
    #[arg(long, conflicts_with = "payload")]
    pub(crate) json_lines: bool,
    /// All of stdin is one message
    #[arg(long, conflicts_with_all = ["payload", "json_lines"])]
    pub(crate) whole: bool,
    /// The key: orders messages and selects members
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// The message type
    #[arg(long = "type")]
    pub(crate) message_type: Option<String>,
    /// The media type of the payload; found out if not given
    #[arg(long)]
    pub(crate) content_type: Option<String>,
    /// A header, NAME=VALUE; may be repeated
    #[arg(long = "header", value_parser = header)]
    pub(crate) headers: Vec<(String, String)>,
    /// Ties messages of one conversation together
    #[arg(long)]
    pub(crate) correlation_id: Option<String>,
    /// A repeat with the same key within the topic's window publishes nothing
    #[arg(long)]
    pub(crate) dedup_key: Option<String>,
    /// Deliver after this long
    #[arg(long, value_parser = duration)]
    pub(crate) delay: Option<Duration>,
    /// Fail if the topic does not exist
    #[arg(long)]
    pub(crate) no_create: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConsumeArgs {
    /// The topic
    pub(crate) topic: String,
    /// The group; its members compete, groups do not
    #[arg(long, default_value = "default")]
    pub(crate) group: String,
    /// Stop after so many messages
    #[arg(long)]
    pub(crate) max: Option<u64>,
    /// Stop when nothing came for this long; without it, waits until interrupted
    #[arg(long, value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Where a new group starts: beginning, now, offset:N, time:TIMESTAMP, last:N
    #[arg(long, default_value = "beginning", value_parser = crate::consume::start)]
    pub(crate) from: headwater::Start,
    /// Messages per claim
    #[arg(long, default_value_t = 100)]
    pub(crate) batch: u32,
    /// How long a hand-out lasts, if not as the topic says
    #[arg(long, value_parser = duration)]
    pub(crate) lease: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List the groups of a topic: how far each is, and how much it holds, waits for and gave up on
    ///
    /// Example: headwater group list orders
    List(GroupListArgs),
    /// Show what a group has handed out and is not done, oldest due first
    ///
    /// Example: headwater group show orders email
    Show(GroupShowArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct GroupListArgs {
    /// The topic
    pub(crate) topic: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GroupShowArgs {
    /// The topic
    pub(crate) topic: String,
    /// The group
    pub(crate) group: String,
    /// At most so many ranges
    #[arg(long, default_value_t = 100)]
    pub(crate) max: u32,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetterCommand {
    /// List dead letters, oldest first
    ///
    /// Example: headwater dead-letter list orders --group email --key o-1
    List(DeadLetterListArgs),
    /// Show one dead letter with its payload
    ///
    /// Example: headwater dead-letter show orders 0199a1b2-… --group email
    Show(DeadLetterShowArgs),
    /// Hand dead letters to their group again, as new messages; other groups do not see them
    ///
    /// Example: headwater dead-letter redrive orders --group email --all
    Redrive(DeadLetterRedriveArgs),
    /// Remove dead letters for good
    ///
    /// Example: headwater dead-letter purge orders --group email --type test --yes
    Purge(DeadLetterPurgeArgs),
}

/// Whose dead letters.
#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetterOf {
    /// The topic
    pub(crate) topic: String,
    /// The group that gave up on them
    #[arg(long, default_value = "default")]
    pub(crate) group: String,
}

/// Which of them: those that fit everything that is named.
#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetterFilter {
    /// Only this one; may be repeated
    #[arg(long = "id")]
    pub(crate) ids: Vec<uuid::Uuid>,
    /// Only those of this key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Only those of this type
    #[arg(long = "type")]
    pub(crate) message_type: Option<String>,
    /// Only those whose error has this text in it
    #[arg(long)]
    pub(crate) error_contains: Option<String>,
    /// Only those buried at this time or later, such as 2026-01-31T12:00:00Z
    #[arg(long)]
    pub(crate) buried_after: Option<jiff::Timestamp>,
    /// Only those buried earlier than this
    #[arg(long)]
    pub(crate) buried_before: Option<jiff::Timestamp>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetterListArgs {
    #[command(flatten)]
    pub(crate) of: DeadLetterOf,
    #[command(flatten)]
    pub(crate) filter: DeadLetterFilter,
    /// At most so many
    #[arg(long, default_value_t = 100)]
    pub(crate) max: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetterShowArgs {
    #[command(flatten)]
    pub(crate) of: DeadLetterOf,
    /// The dead letter, as listed
    pub(crate) id: uuid::Uuid,
}

#[derive(Debug, clap::Args)]
#[command(group = choice())]
pub(crate) struct DeadLetterRedriveArgs {
    #[command(flatten)]
    pub(crate) of: DeadLetterOf,
    #[command(flatten)]
    pub(crate) filter: DeadLetterFilter,
    /// All of the group's
    #[arg(long, conflicts_with_all = FILTERS)]
    pub(crate) all: bool,
}

#[derive(Debug, clap::Args)]
#[command(group = choice())]
pub(crate) struct DeadLetterPurgeArgs {
    #[command(flatten)]
    pub(crate) of: DeadLetterOf,
    #[command(flatten)]
    pub(crate) filter: DeadLetterFilter,
    /// All of the group's
    #[arg(long, conflicts_with_all = FILTERS)]
    pub(crate) all: bool,
    /// They are removed for good: say that it is meant
    #[arg(long, required = true)]
    pub(crate) yes: bool,
}

const FILTERS: [&str; 6] = ["ids", "key", "message_type", "error_contains", "buried_after", "buried_before"];

/// Nobody means all of them by naming nothing.
fn choice() -> clap::ArgGroup {
    clap::ArgGroup::new("choice").args(FILTERS).arg("all").required(true).multiple(true)
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

impl Global {
    /// The options that every command opens the store with.
    pub(crate) fn options(&self) -> OpenOptions {
        match &self.namespace {
            Some(namespace) => OpenOptions::default().namespace(namespace),
            None => OpenOptions::default(),
        }
    }

    pub(crate) async fn open(&self, options: OpenOptions) -> Result<Headwater> {
        Ok(Headwater::open_with(&self.store, options).await?)
    }
}

/// Durations as people write them: 500ms, 30s, 5m, 2h.
fn duration(text: &str) -> Result<Duration, String> {
    let signed: jiff::SignedDuration =
        text.parse().map_err(|error| format!("{error}; write it like 30s or 5m"))?;
    Duration::try_from(signed).map_err(|_| "must not be negative".into())
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
