//! What `dead-letter` takes.

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
    #[arg(long, value_parser = timestamp)]
    pub(crate) buried_after: Option<jiff::Timestamp>,
    /// Only those buried earlier than this
    #[arg(long, value_parser = timestamp)]
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
pub(crate) struct DeadLetterPurgeArgs {
    #[command(flatten)]
    pub(crate) these: DeadLetterRedriveArgs,
    /// They are removed for good: say that it is meant
    #[arg(long, required = true)]
    pub(crate) yes: bool,
}

const FILTERS: [&str; 6] = ["ids", "key", "message_type", "error_contains", "buried_after", "buried_before"];

/// Nobody means all of them by naming nothing.
fn choice() -> clap::ArgGroup {
    clap::ArgGroup::new("choice").args(FILTERS).arg("all").required(true).multiple(true)
}
