//! Arguments of `publish`, `consume` and `peek`.

use std::time::Duration;

use super::words::{concurrency, duration, start};

#[derive(Debug, clap::Args)]
pub(crate) struct PublishArgs {
    /// The topic; created as a queue if it does not exist
    pub(crate) topic: String,
    /// The payload; without it stdin is read, one message per line
    pub(crate) payload: Option<String>,
    /// Each line of stdin is a JSON object, as `consume --output json` prints it
    ///
    /// Fields: payload or payload_hex; key, type, content_type, headers, correlation_id, dedup_key, deliver_at, message_id.
    /// A payload that is a string is text, any other value is JSON; with content_type application/json a string is JSON too.
    /// payload_hex has bytes, two hexadecimal digits each. message_id is kept: to an inbox the copy is the same message; leave
    /// it out for a new one. offset and created_at are ignored: the new message gets its own.
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
    #[arg(long)]
    pub(crate) group: String,
    /// Subscribe the group if the topic has none of this name
    #[arg(long)]
    pub(crate) create: bool,
    /// Where a new group starts: beginning, now, offset:N, time:TIMESTAMP, bounded:N [default: beginning]
    #[arg(long, value_parser = start, allow_hyphen_values = true)]
    pub(crate) from: Option<headwater::Start>,
    /// Stop after this many messages
    #[arg(long)]
    pub(crate) max: Option<u64>,
    /// Stop when no message arrives for this long; without it, wait until interrupted
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,
    /// Exit with 3 if there was no message
    #[arg(long)]
    pub(crate) fail_if_empty: bool,
    /// Messages per claim, acked together [default: 1 into a pipe, else 100]
    #[arg(long, conflicts_with = "exec")]
    pub(crate) batch: Option<u32>,
    /// Run this shell command for each message instead of printing it: 0 acks, 65 buries, any other exit code retries
    #[arg(long, value_name = "COMMAND")]
    pub(crate) exec: Option<String>,
    /// How many commands run at once [default: 1]
    #[arg(long, requires = "exec", value_parser = concurrency())]
    pub(crate) concurrency: Option<usize>,
    /// How long a command may run; it is killed then, and the message is retried
    #[arg(long, requires = "exec", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// How long a lease lasts, if not as the topic's setting; with --exec 30s by default, extended while a command runs
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    pub(crate) lease: Option<Duration>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PeekArgs {
    /// The topic
    pub(crate) topic: String,
    /// Where to start: beginning, now, offset:N, time:TIMESTAMP, bounded:N for the last N messages
    #[arg(long, default_value = "beginning", value_parser = start, allow_hyphen_values = true)]
    pub(crate) from: headwater::Start,
    /// Only messages with this key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Stop after this many messages
    #[arg(long)]
    pub(crate) max: Option<u64>,
    /// Wait for further messages until interrupted
    #[arg(long)]
    pub(crate) follow: bool,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
