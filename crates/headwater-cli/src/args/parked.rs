//! Arguments of `parked`.

use clap::Subcommand;

use super::Watch;
use super::group::Confirmation;

#[derive(Debug, Subcommand)]
pub(crate) enum ParkedCommand {
    /// List them, oldest first
    ///
    /// Examples:
    ///   headwater parked list
    ///   headwater parked list --source command --name Pay
    #[command(verbatim_doc_comment)]
    List(ParkedListArgs),
    /// Show one with its payload
    ///
    /// Example: headwater parked show 0199a1b2-…
    Show(ParkedOne),
    /// Redrive them: an outbox entry becomes NEW with no attempts, a command is published to its topic
    ///
    /// A command without a topic is refused: send it by its own means, and delete the dead letter.
    ///
    /// Example: headwater parked redrive 0199a1b2-…
    #[command(verbatim_doc_comment)]
    Redrive(ParkedThese),
    /// Delete them permanently; that of an outbox entry with the entry
    ///
    /// Example: headwater parked delete 0199a1b2-… --yes
    #[command(verbatim_doc_comment)]
    Delete(ParkedDeleteArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ParkedListArgs {
    /// Only those of this source
    #[arg(long, value_parser = ["outbox", "command"])]
    pub(crate) source: Option<String>,
    /// Only those of this name: of a command, or the type of an outbox entry
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Only those with this business key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Only those whose error contains this text
    #[arg(long)]
    pub(crate) error_contains: Option<String>,
    /// The most to list
    #[arg(long, default_value_t = 100)]
    pub(crate) max: u32,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ParkedOne {
    /// The id of the dead letter, as listed
    pub(crate) id: uuid::Uuid,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ParkedThese {
    /// The ids of the dead letters, as listed
    #[arg(required = true)]
    pub(crate) ids: Vec<uuid::Uuid>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ParkedDeleteArgs {
    #[command(flatten)]
    pub(crate) these: ParkedThese,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}
