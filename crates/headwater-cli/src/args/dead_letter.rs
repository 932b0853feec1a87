//! Arguments of `dead-letter`.

use clap::Subcommand;

use super::words::timestamp;

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
    /// Hand dead letters out to their group again, as new messages; other groups do not receive them
    ///
    /// Example: headwater dead-letter redrive orders --group email --all
    Redrive(DeadLetterRedriveArgs),
    /// Remove dead letters permanently
    ///
    /// Example: headwater dead-letter purge orders --group email --type test --yes
    Purge(DeadLetterPurgeArgs),
}

/// The group whose dead letters are meant.
#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetterOf {
    /// The topic
    pub(crate) topic: String,
    /// The group that gave up on them
    #[arg(long, default_value = "default")]
    pub(crate) group: String,
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
    /// Only those buried at this time or later, such as 2026-01-31T12:00:00Z
    #[arg(long, value_parser = timestamp)]
    pub(crate) buried_after: Option<jiff::Timestamp>,
    /// Only those buried before this time
    #[arg(long, value_parser = timestamp)]
    pub(crate) buried_before: Option<jiff::Timestamp>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetterListArgs {
    #[command(flatten)]
    pub(crate) of: DeadLetterOf,
    #[command(flatten)]
    pub(crate) filter: DeadLetterFilter,
    /// The most to list
    #[arg(long, default_value_t = 100)]
    pub(crate) max: u32,
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
pub(crate) struct DeadLetterRedriveArgs {
    #[command(flatten)]
    pub(crate) of: DeadLetterOf,
    #[command(flatten)]
    pub(crate) filter: DeadLetterFilter,
    /// All dead letters of the group
    #[arg(long, conflicts_with_all = FILTERS)]
    pub(crate) all: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetterPurgeArgs {
    #[command(flatten)]
    pub(crate) these: DeadLetterRedriveArgs,
    /// Confirm: they are removed permanently
    #[arg(long, required = true)]
    pub(crate) yes: bool,
}

const FILTERS: [&str; 6] = ["ids", "key", "message_type", "error_contains", "buried_after", "buried_before"];

/// No filter does not mean all of them: that has to be requested with `--all`.
fn choice() -> clap::ArgGroup {
    clap::ArgGroup::new("choice").args(FILTERS).arg("all").required(true).multiple(true)
}
