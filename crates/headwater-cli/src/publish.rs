//! `headwater publish`.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use headwater::store::StoreUrl;
use headwater::{NewMessage, OpenOptions, Producer, Published};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Split, Stdin};
use uuid::Uuid;

use crate::args::{Global, Output, PublishArgs};

/// Lines of stdin published together; a smaller batch is published when no further line is available at once.
const BATCH_MESSAGES: usize = 1_000;

/// One line of `--json-lines`. An unknown field is refused: it would be lost.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    payload: serde_json::Value,
    message_id: Option<Uuid>,
    key: Option<String>,
    #[serde(rename = "type")]
    message_type: Option<String>,
    content_type: Option<String>,
    #[serde(default)]
    headers: headwater::Headers,
    correlation_id: Option<String>,
    dedup_key: Option<String>,
    deliver_at: Option<jiff::Timestamp>,
}

pub(crate) async fn run(global: &Global, args: &PublishArgs) -> Result<ExitCode> {
    let headwater = global.create(options(global, args)?).await?;
    let producer = headwater.producer(&args.topic);
    let mut out = Out { output: global.output, topic: args.topic.clone(), failed: None };
    if let Some(payload) = &args.payload {
        send(&mut out, &producer, vec![message(args, payload.clone().into_bytes())]).await?;
    } else if args.whole {
        let mut payload = Vec::new();
        tokio::io::stdin().read_to_end(&mut payload).await.context("reading stdin")?;
        send(&mut out, &producer, vec![message(args, payload)]).await?;
    } else {
        send_lines(&mut out, args, &producer).await?;
    }
    headwater.close().await?;
    out.end()?;
    Ok(ExitCode::SUCCESS)
}

/// Publishing creates the topic by default. Where the store has a setting for it, that decides: an option of one call
/// neither changes nor overrides it.
fn options(global: &Global, args: &PublishArgs) -> Result<OpenOptions> {
    let has_setting = matches!(global.store_url()?, StoreUrl::Sqlite(_));
    let options = global.options();
    Ok(match args.no_create {
        true => options.auto_create(false),
        false if has_setting => options,
        false => options.auto_create(true),
    })
}

/// Prints what was published, until printing fails. Publishing does not depend on it: all input is published even if the
/// reader of the output stops early.
struct Out {
    output: Output,
    topic: String,
    failed: Option<std::io::Error>,
}

impl Out {
    fn print(&mut self, published: &[Published]) {
        if self.failed.is_none() {
            self.failed = self.write(published).err();
        }
    }

    fn write(&self, published: &[Published]) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        for one in published {
            match self.output {
                Output::Json => writeln!(out, "{}", as_json(&self.topic, one))?,
                Output::Table => writeln!(out, "{}", as_text(&self.topic, one))?,
            }
        }
        out.flush()
    }

    /// A closed pipe is not an error; any other failure is reported once everything is published.
    fn end(self) -> Result<()> {
        match self.failed {
            Some(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(error).context("everything was published, but printing it failed")
            }
            _ => Ok(()),
        }
    }
}

/// Publishes stdin line by line in batches. A bad line stops it and is reported; the lines before it are published.
async fn send_lines(out: &mut Out, args: &PublishArgs, producer: &Producer) -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).split(b'\n');
    let (mut number, mut count) = (0_u64, 0_usize);
    loop {
        let (batch, stop) = read_batch(args, &mut lines, &mut number).await;
        let done = batch.is_empty();
        count += batch.len();
        if !done {
            send(out, producer, batch).await?;
        }
        stop?;
        if done {
            let messages = if count == 1 { "message" } else { "messages" };
            // Stderr may be the same closed pipe.
            let _ = writeln!(std::io::stderr(), "published {count} {messages} to {}", args.topic);
            return Ok(());
        }
    }
}

/// Reads the available lines: waits for the first line only. The second value is why a batch ended early.
async fn read_batch(
    args: &PublishArgs,
    lines: &mut Split<BufReader<Stdin>>,
    number: &mut u64,
) -> (Vec<NewMessage>, Result<()>) {
    let mut batch = Vec::new();
    while batch.len() < BATCH_MESSAGES {
        let line = if batch.is_empty() {
            lines.next_segment().await
        } else {
            // No waiting: lines of a slow writer are published one by one, those of a file by the thousand.
            match tokio::time::timeout(std::time::Duration::from_millis(1), lines.next_segment()).await {
                Ok(line) => line,
                Err(_) => break,
            }
        };
        *number += 1;
        let message = match line {
            Ok(None) => break,
            Ok(Some(line)) => parse(args, line).with_context(|| format!("line {number} of stdin")),
            Err(error) => Err(error).context("reading stdin"),
        };
        match message {
            Ok(message) => batch.push(message),
            Err(error) => return (batch, Err(error)),
        }
    }
    (batch, Ok(()))
}

/// A line is a payload of any bytes; only JSON has to be text.
fn parse(args: &PublishArgs, mut line: Vec<u8>) -> Result<NewMessage> {
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    let message = if args.json_lines { from_json(args, &line)? } else { message(args, line) };
    message.validate()?;
    Ok(message)
}

fn from_json(args: &PublishArgs, line: &[u8]) -> Result<NewMessage> {
    let line: Line = serde_json::from_slice(line)?;
    // A string is sent as its text, anything else as JSON.
    let (payload, detected) = match &line.payload {
        serde_json::Value::String(text) => (text.clone().into_bytes(), "text/plain"),
        other => (serde_json::to_vec(other)?, "application/json"),
    };
    let mut message = message(args, payload);
    message.content_type = line.content_type.or(args.content_type.clone()).or(Some(detected.into()));
    message.message_id = line.message_id;
    message.key = line.key.or(message.key);
    message.message_type = line.message_type.or(message.message_type);
    message.correlation_id = line.correlation_id.or(message.correlation_id);
    message.dedup_key = line.dedup_key.or(message.dedup_key);
    message.deliver_at = line.deliver_at.or(message.deliver_at);
    message.headers.extend(line.headers);
    Ok(message)
}

fn message(args: &PublishArgs, payload: Vec<u8>) -> NewMessage {
    let detected = || {
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&payload).is_ok();
        let is_text = std::str::from_utf8(&payload).is_ok();
        Some(
            if is_json {
                "application/json"
            } else if is_text {
                "text/plain"
            } else {
                "application/octet-stream"
            }
            .into(),
        )
    };
    NewMessage {
        content_type: args.content_type.clone().or_else(detected),
        key: args.key.clone(),
        message_type: args.message_type.clone(),
        headers: args.headers.iter().cloned().collect(),
        correlation_id: args.correlation_id.clone(),
        dedup_key: args.dedup_key.clone(),
        deliver_at: args.delay.map(|delay| jiff::Timestamp::now() + delay),
        ..NewMessage::new(payload)
    }
}

async fn send(out: &mut Out, producer: &Producer, messages: Vec<NewMessage>) -> Result<()> {
    let published = producer.send_batch(&messages).await?;
    out.print(&published);
    Ok(())
}

fn as_json(topic: &str, published: &Published) -> serde_json::Value {
    json!({
        "topic": topic,
        "offset": published.offset.map(|offset| offset.0),
        "message_id": published.message_id,
        "duplicate": published.duplicate,
    })
}

fn as_text(topic: &str, published: &Published) -> String {
    let offset = published.offset.map_or_else(|| "scheduled".to_owned(), |offset| offset.to_string());
    let duplicate = if published.duplicate { " (duplicate)" } else { "" };
    format!("{topic} {offset}{duplicate}")
}
