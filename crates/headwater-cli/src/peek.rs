//! `headwater peek`.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use headwater::{Headwater, Message};

use crate::args::{Global, Output, PeekArgs};
use crate::consume::existing;
use crate::output::payload_as_json;
use crate::{json_line, reader};

/// How long one wait for messages lasts; the next one follows.
const WAIT: Duration = Duration::from_secs(3600);
/// How much of a payload a line for people shows.
const PAYLOAD_CHARS_MAX: usize = 200;

pub(crate) async fn run(global: &Global, args: &PeekArgs) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    existing(&headwater, &args.topic).await?;
    let printed = print(global.output, args, &headwater).await;
    headwater.close().await?;
    printed?;
    Ok(ExitCode::SUCCESS)
}

/// Prints messages until the end of the topic, or with `--follow` until the reader of the output has gone.
async fn print(output: Output, args: &PeekArgs, headwater: &Headwater) -> Result<()> {
    let mut tail = headwater.tail(&args.topic, args.from).await?;
    let (mut left, is_pipe) = (args.max.unwrap_or(u64::MAX), reader::is_pipe());
    while left > 0 {
        let messages = tokio::select! {
            messages = tail.next(if args.follow { WAIT } else { Duration::ZERO }) => messages?,
            () = reader::gone(is_pipe) => return Ok(()),
        };
        if messages.is_empty() && !args.follow {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        for message in messages.iter().filter(|message| args.key.is_none() || message.key == args.key) {
            if left == 0 {
                break;
            }
            match output {
                Output::Json => writeln!(out, "{}", json_line::print(message)?)?,
                Output::Table => writeln!(out, "{}", line(message))?,
            }
            left -= 1;
        }
        out.flush()?;
    }
    Ok(())
}

/// A message as a line for people: offset, time, key, type and the beginning of the payload.
fn line(message: &Message) -> String {
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    let (key, message_type) = (or_none(&message.key), or_none(&message.message_type));
    let at = message.created_at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ");
    format!("{:>8}  {at}  {key}  {message_type}  {}", message.offset.0, in_short(message))
}

/// The beginning of the payload, on one line: control characters, which could change a terminal, are escaped.
fn in_short(message: &Message) -> String {
    let text = match payload_as_json(None, &message.payload) {
        ("payload", serde_json::Value::String(text)) => text,
        (name, value) => format!("{name} {}", value.as_str().unwrap_or_default()),
    };
    let cut = text.chars().count() > PAYLOAD_CHARS_MAX;
    let mut short = String::new();
    for c in text.chars().take(PAYLOAD_CHARS_MAX) {
        match c.is_control() {
            true => short.extend(c.escape_default()),
            false => short.push(c),
        }
    }
    if cut {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use headwater::{Headers, Offset};

    use super::*;

    #[test]
    fn a_payload_is_shown_on_one_line_and_changes_no_terminal() {
        let shown = |payload: &[u8]| {
            line(&Message {
                offset: Offset(42),
                message_id: uuid::Uuid::nil(),
                key: Some("o-1".into()),
                message_type: None,
                payload: payload.to_vec().into(),
                content_type: None,
                headers: Headers::new(),
                correlation_id: None,
                created_at: jiff::Timestamp::UNIX_EPOCH,
            })
        };
        assert_eq!(shown(b"{\"n\":1}"), "      42  1970-01-01T00:00:00.000Z  o-1  -  {\"n\":1}");
        assert!(shown(b"a\nb\x1b[2J").ends_with("  a\\nb\\u{1b}[2J"));
        assert!(shown(b"\xff\x00").ends_with("  payload_hex ff00"));
        let long = shown("ü".repeat(201).as_bytes());
        assert!(long.ends_with(&format!("  {}…", "ü".repeat(200))), "{long}");
    }
}
