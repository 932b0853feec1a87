//! `headwater publish`.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use headwater::store::StoreUrl;
use headwater::{ErrorKind, NewMessage, OpenOptions, Producer, Published};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Split, Stdin};

use crate::args::{Global, Output, PublishArgs};
use crate::json_line;
use crate::output::{kind, note};
use crate::progress::Counted;

/// Lines of stdin published together; a smaller batch is published when no further line is available at once.
const BATCH_MESSAGES: usize = 1_000;

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
    let mut count = 0;
    let mut progress = Counted::new("published");
    loop {
        let (batch, stop) = read_batch(args, &mut lines).await;
        let (size, done) = (batch.len() as u64, batch.is_empty());
        if !done && let Err(error) = send(out, producer, batch).await {
            // A batch is all or nothing, unless the answer of the store was lost.
            let rest = match kind(&error) {
                Some(ErrorKind::CommitUnknown) => format!("up to line {} it is unknown", count + size),
                _ => "nothing after it".into(),
            };
            note(format_args!("published {} before line {}; {rest}", messages(count), count + 1));
            return Err(error);
        }
        count += size;
        progress.at(count);
        if let Err(error) = stop {
            let bad = count + 1;
            note(format_args!("published {} before line {bad}; nothing after it", messages(count)));
            return Err(error.context(format!("line {bad} of stdin")));
        }
        if done {
            drop(progress);
            note(format_args!("published {} to {}", messages(count), args.topic));
            return Ok(());
        }
    }
}

fn messages(count: u64) -> String {
    format!("{count} {}", if count == 1 { "message" } else { "messages" })
}

/// Reads the available lines: waits for the first line only. The second value is
/// why a batch ended early: its next line is bad.
async fn read_batch(
    args: &PublishArgs,
    lines: &mut Split<BufReader<Stdin>>,
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
        let message = match line {
            Ok(None) => break,
            Ok(Some(line)) => parse(args, line),
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
    let message = match args.json_lines {
        true => json_line::parse(&line, &default(args))?,
        false => message(args, line),
    };
    message.validate()?;
    Ok(message)
}

/// A message of these bytes; the content type is detected if none is given.
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
    let default = default(args);
    let content_type = default.content_type.or_else(detected);
    NewMessage { payload: payload.into(), content_type, ..default }
}

/// What the options say of every message.
fn default(args: &PublishArgs) -> NewMessage {
    NewMessage {
        content_type: args.content_type.clone(),
        key: args.key.clone(),
        message_type: args.message_type.clone(),
        headers: args.headers.iter().cloned().collect(),
        correlation_id: args.correlation_id.clone(),
        dedup_key: args.dedup_key.clone(),
        // The store adds it to the time of the database: this machine's clock may differ.
        delay: args.delay,
        ..NewMessage::default()
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
