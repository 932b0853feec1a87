//! Arguments of `publish` and `consume`.

use std::time::Duration;

use super::words::{duration, start};

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
    /// The media type of the payload; detected if not given
    #[arg(long)]
    pub(crate) content_type: Option<String>,
    /// A header, NAME=VALUE; may be repeated
    #[arg(long = "header", value_parser = header)]
    pub(crate) headers: Vec<(String, String)>,
    /// Ties messages of one conversation together
    #[arg(long)]
    pub(crate) correlation_id: Option<String>,
    /// A second message with the same dedup key within the topic's window is not published
    #[arg(long)]
    pub(crate) dedup_key: Option<String>,
    /// Deliver after this delay
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    pub(crate) delay: Option<Duration>,
    /// Fail if the topic does not exist; without it, it is created unless `headwater topic auto-create` is off
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
    /// Stop after this many messages
    #[arg(long)]
    pub(crate) max: Option<u64>,
    /// Stop when no message arrives for this long; without it, wait until interrupted
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,
    /// Where a new group starts: beginning, now, offset:N, time:TIMESTAMP, bounded:N
    #[arg(long, default_value = "beginning", value_parser = start, allow_hyphen_values = true)]
    pub(crate) from: headwater::Start,
    /// Messages per claim
    #[arg(long, default_value_t = 100)]
    pub(crate) batch: u32,
    /// How long a lease lasts, if not as the topic's setting
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    pub(crate) lease: Option<Duration>,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
