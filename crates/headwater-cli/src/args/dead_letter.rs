//! Arguments of `dead-letter`.

use clap::Subcommand;

use super::Watch;
use super::group::Confirmation;
use super::words::{per_second, timestamp};

#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetterCommand {
    /// List dead letters, oldest first: of a group, of all groups of a topic, or of all topics
    ///
    /// Examples:
    ///   headwater dead-letter list
    ///   headwater dead-letter list orders --count
    ///   headwater dead-letter list orders --group email --key o-1
    #[command(verbatim_doc_comment)]
    List(DeadLetterListArgs),
    /// Show one dead letter with its payload
    ///
    /// Example: headwater dead-letter show orders 0199a1b2-…
    Show(DeadLetterShowArgs),
    /// Hand dead letters out to their groups again, as if new; other groups do not receive them
    ///
    /// --payload and --edit change one dead letter: an edited copy is published and the dead letter is deleted. The copy is a new
    /// message, behind later ones of its key and for every group of the topic: with other groups --all-groups is needed.
    ///
    /// Examples:
    ///   headwater dead-letter redrive orders --group email --all --dry-run
    ///   headwater dead-letter redrive orders --error-contains "timed out" --rate 100/s
    ///   headwater dead-letter redrive orders --id 0199a1b2-… --payload '{"n":2}' --all-groups
    #[command(verbatim_doc_comment)]
    Redrive(DeadLetterRedriveArgs),
    /// Remove dead letters permanently
    ///
    /// On a terminal it shows how many would be removed and asks; elsewhere --yes is needed.
    ///
    /// Examples:
    ///   headwater dead-letter purge orders --group email --all --dry-run
    ///   headwater dead-letter purge orders --group email --type test --yes
    #[command(verbatim_doc_comment)]
    Purge(DeadLetterPurgeArgs),
}

/// The groups whose dead letters are meant.
#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetterOf {
    /// The topic
    pub(crate) topic: String,
    /// Only those of this group; all groups of the topic if none is given
    #[arg(long)]
    pub(crate) group: Option<String>,
}

/// Which dead letters: those that match every given filter.
#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetterFilter {
    /// Only this dead letter; may be repeated
    #[arg(long = "id")]
    pub(crate) ids: Vec<uuid::Uuid>,
    /// Only those with this key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Only those with this message type
    #[arg(long = "type")]
    pub(crate) message_type: Option<String>,
    /// Only those whose error contains this text
    #[arg(long)]
    pub(crate) error_contains: Option<String>,
    /// Only those buried at this time or later, such as 2026-01-31T12:00:00Z, 2026-01-31 (UTC) or -1h
    #[arg(long, value_parser = timestamp, allow_hyphen_values = true)]
    pub(crate) buried_after: Option<jiff::Timestamp>,
    /// Only those buried before this time
    #[arg(long, value_parser = timestamp, allow_hyphen_values = true)]
    pub(crate) buried_before: Option<jiff::Timestamp>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetterListArgs {
    /// The topic; all topics if none is given
    pub(crate) topic: Option<String>,
    /// Only those of groups of this name
    #[arg(long)]
    pub(crate) group: Option<String>,
    #[command(flatten)]
    pub(crate) filter: DeadLetterFilter,
    /// Only how many, by topic and group, and how many of them have lost their message
    #[arg(long)]
    pub(crate) count: bool,
    /// The most to list
    #[arg(long, default_value_t = 100)]
    pub(crate) max: u32,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetterShowArgs {
    #[command(flatten)]
    pub(crate) of: DeadLetterOf,
    /// The id of the dead letter, as listed
    pub(crate) id: uuid::Uuid,
}

#[derive(Debug, clap::Args)]
#[command(group = choice())]
pub(crate) struct DeadLetterChoice {
    #[command(flatten)]
    pub(crate) of: DeadLetterOf,
    #[command(flatten)]
    pub(crate) filter: DeadLetterFilter,
    /// All dead letters of the groups
    #[arg(long, conflicts_with_all = FILTERS)]
    pub(crate) all: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetterRedriveArgs {
    #[command(flatten)]
    pub(crate) these: DeadLetterChoice,
    /// Only show how many would be redriven
    #[arg(long, conflicts_with_all = ["payload", "edit"])]
    pub(crate) dry_run: bool,
    /// At most so many a second, such as 100/s; each second has its audit entry
    #[arg(long, value_parser = per_second, conflicts_with_all = ["payload", "edit"])]
    pub(crate) rate: Option<f64>,
    /// Publish a copy of one dead letter, named by --id, with this payload
    #[arg(long, requires = "ids", conflicts_with = "edit")]
    pub(crate) payload: Option<String>,
    /// The same with what the editor ($VISUAL or $EDITOR) makes of its payload
    #[arg(long, requires = "ids")]
    pub(crate) edit: bool,
    /// The copy may go to the other groups of the topic, too
    #[arg(long)]
    pub(crate) all_groups: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetterPurgeArgs {
    #[command(flatten)]
    pub(crate) these: DeadLetterChoice,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

const FILTERS: [&str; 6] = ["ids", "key", "message_type", "error_contains", "buried_after", "buried_before"];

/// No filter does not mean all of them: that has to be requested with `--all`.
fn choice() -> clap::ArgGroup {
    clap::ArgGroup::new("choice").args(FILTERS).arg("all").required(true).multiple(true)
}
