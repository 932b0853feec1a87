//! Arguments of `message`.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum MessageCommand {
    /// Show a message with its payload, and its state in each group
    ///
    /// Example: headwater message show orders 1
    Show(MessageShowArgs),
    /// Mark a message as done for a group, without handling it; in an ordered group the next one of its key follows
    ///
    /// Refused while it is leased, unless --force is given, which ends the lease.
    ///
    /// Example: headwater message skip orders 3 --group email
    Skip(MessageActArgs),
    /// Make a message a dead letter of a group
    ///
    /// Refused while it is leased, unless --force is given, which ends the lease.
    ///
    /// Example: headwater message bury orders 3 --group email --reason "customer unknown"
    Bury(MessageBuryArgs),
    /// Hand a message that waits for its retry time to its group at once
    ///
    /// Example: headwater message retry orders 2 --group email --force
    Retry(MessageActArgs),
}

/// A message of a topic.
#[derive(Debug, clap::Args)]
pub(crate) struct MessageAt {
    /// The topic
    pub(crate) topic: String,
    /// The offset of the message
    #[arg(value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) offset: i64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MessageShowArgs {
    #[command(flatten)]
    pub(crate) at: MessageAt,
    /// Only its state in this group
    #[arg(long)]
    pub(crate) group: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MessageActArgs {
    #[command(flatten)]
    pub(crate) at: MessageAt,
    /// The group
    #[arg(long)]
    pub(crate) group: String,
    /// Also while it is leased: the lease ends, and its other messages are handed out again
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MessageBuryArgs {
    #[command(flatten)]
    pub(crate) act: MessageActArgs,
    /// Why, as the dead letter shows it
    #[arg(long, default_value = "buried by an operator")]
    pub(crate) reason: String,
}
