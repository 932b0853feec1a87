//! Arguments of `outbox`.

use std::time::Duration;

use clap::Subcommand;
use clap::builder::TypedValueParser;
use headwater::outbox::{Category, OutboxStatus};

use super::Watch;
use super::words::{duration, one_of};

#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    /// List entries, oldest first: those that are not published, unless --status says otherwise
    ///
    /// Examples:
    ///   headwater outbox list
    ///   headwater outbox list --status PARKED --topic orders
    ///   headwater outbox list --status PUBLISHED --max 20
    #[command(verbatim_doc_comment)]
    List(OutboxListArgs),
    /// Show one entry with its payload
    ///
    /// Example: headwater outbox show 1
    Show(OutboxOne),
    /// Send entries again that failed or are parked: they become NEW with no attempts, and their dead letters are deleted
    ///
    /// Exits with 1 if none of them could be requeued.
    ///
    /// Examples:
    ///   headwater outbox requeue 2
    ///   headwater outbox requeue --parked --topic orders
    #[command(verbatim_doc_comment)]
    Requeue(OutboxRequeueArgs),
    /// Make entries NEW again that were claimed long ago, such as those of a relay that was switched off; attempts stay
    ///
    /// A sweep takes them by itself after the claim timeout, and counts that as an attempt.
    ///
    /// Example: headwater outbox recover --older-than 10m
    #[command(verbatim_doc_comment)]
    Recover(OutboxRecoverArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct OutboxListArgs {
    /// Only those of this status
    #[arg(long, value_parser = status(), ignore_case = true)]
    pub(crate) status: Option<OutboxStatus>,
    /// Only those of this category
    #[arg(long, value_parser = category())]
    pub(crate) category: Option<Category>,
    /// Only those of this topic of the broker
    #[arg(long)]
    pub(crate) topic: Option<String>,
    /// Only those with this key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Only those with a higher id: the next page
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(crate) after: i64,
    /// The most to list
    #[arg(long, default_value_t = 100)]
    pub(crate) max: u32,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OutboxOne {
    /// The id of the entry, as listed
    pub(crate) id: i64,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").args(["ids", "parked"]).required(true))]
pub(crate) struct OutboxRequeueArgs {
    /// The ids of the entries, as listed
    pub(crate) ids: Vec<i64>,
    /// All that are parked
    #[arg(long)]
    pub(crate) parked: bool,
    /// With --parked: only those of this topic of the broker
    #[arg(long, requires = "parked")]
    pub(crate) topic: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OutboxRecoverArgs {
    /// The age of their claim, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older_than: Duration,
}

fn status() -> impl TypedValueParser<Value = OutboxStatus> {
    one_of(&OutboxStatus::ALL, OutboxStatus::as_str)
}

fn category() -> impl TypedValueParser<Value = Category> {
    one_of(&[Category::Command, Category::Event, Category::Reply], Category::as_str)
}
