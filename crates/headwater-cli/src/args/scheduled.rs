//! Arguments of `scheduled`.

use std::time::Duration;

use clap::Subcommand;

use super::words::{duration, timestamp};

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduledCommand {
    /// List the messages of a topic that are not due yet, by their time
    ///
    /// Example: headwater scheduled list reminders --max 20
    List(ScheduledListArgs),
    /// Cancel a message: it is never delivered. Exits with 1 if it was delivered before, or never scheduled
    ///
    /// Example: headwater scheduled cancel reminders 0199a1b2-…
    Cancel(ScheduledOne),
    /// Move a message to another time. Exits with 1 if it was delivered before, or never scheduled
    ///
    /// Examples:
    ///   headwater scheduled move reminders 0199a1b2-… --delay 2h
    ///   headwater scheduled move reminders 0199a1b2-… --deliver-at 2026-01-31T12:00:00Z
    #[command(verbatim_doc_comment)]
    Move(ScheduledMoveArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScheduledListArgs {
    /// The topic
    pub(crate) topic: String,
    /// The most to list
    #[arg(long, default_value_t = 100)]
    pub(crate) max: u32,
}

/// The message that is meant.
#[derive(Debug, clap::Args)]
pub(crate) struct ScheduledOne {
    /// The topic
    pub(crate) topic: String,
    /// The id of the message, as listed
    pub(crate) message_id: uuid::Uuid,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("to").args(["delay", "deliver_at"]).required(true))]
pub(crate) struct ScheduledMoveArgs {
    #[command(flatten)]
    pub(crate) one: ScheduledOne,
    /// How long from now, by the database's clock, such as 90s or 2h
    #[arg(long, value_parser = duration)]
    pub(crate) delay: Option<Duration>,
    /// The time of delivery, such as 2026-01-31T12:00:00Z; one that has passed delivers it at once
    #[arg(long, value_parser = timestamp)]
    pub(crate) deliver_at: Option<jiff::Timestamp>,
}
