//! `headwater consume`.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use headwater::{Batch, Consumer, ErrorKind, Message, Offset};
use serde_json::{Value, json};

use crate::args::{ConsumeArgs, Global, Output};
use crate::group::with_fan_out_hint;
use crate::output::payload_as_json;
use crate::stop::Stop;

/// How long one wait lasts; signals end it.
const WAIT: Duration = Duration::from_secs(3600);
/// The longest pause between attempts to reach a database that is unavailable.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

pub(crate) async fn run(global: &Global, args: &ConsumeArgs) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    // A store may create topics on publish. On consume a missing topic is a mistyped name.
    let topic = &args.topic;
    match headwater.topics().get(topic).await {
        Err(error) if error.kind() == ErrorKind::NoSuchTopic => {
            bail!("no such topic {topic}; create it with `headwater topic create {topic}`, or publish to it")
        }
        found => found?,
    };
    let mut builder = headwater.consumer(&args.topic, &args.group).start_from(args.from).batch(args.batch);
    if let Some(lease) = args.lease {
        builder = builder.lease(lease);
    }
    if let Some(max) = args.max {
        // Never claim more than will be printed.
        builder = builder.batch(args.batch.min(u32::try_from(max).unwrap_or(u32::MAX)).max(1));
    }
    // The current batch is printed and acked, the rest released. After a second signal the messages are redelivered when
    // their leases expire.
    let mut stop = Stop::on_signals("stopping after the current batch; again to stop at once")?;
    let mut consumer = builder.open().await.map_err(|error| with_fan_out_hint(error, topic))?;
    let result = drain(global, args, &mut consumer, &mut stop).await;
    consumer.close().await?;
    headwater.close().await?;
    result?;
    Ok(ExitCode::SUCCESS)
}

async fn drain(global: &Global, args: &ConsumeArgs, consumer: &mut Consumer, stop: &mut Stop) -> Result<()> {
    let mut left = args.max.unwrap_or(u64::MAX);
    let mut pause = Duration::from_millis(100);
    while left > 0 && !stop.is_asked() {
        match consumer.next_unless(args.wait.unwrap_or(WAIT), stop.asked()).await {
            Ok(Some(batch)) => left -= print(global, batch, left).await?,
            Ok(None) if args.wait.is_some() => return Ok(()),
            Ok(None) => {}
            Err(error) if error.is_retryable() => {
                // Not `eprintln!`: it panics when the other end of stderr is closed.
                let _ = writeln!(std::io::stderr(), "waiting for the store: {error}");
                tokio::select! {
                    () = stop.asked() => {}
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(RETRY_PAUSE_MAX);
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        pause = Duration::from_millis(100);
    }
    Ok(())
}

/// Prints up to `left` messages and acks them; the rest is released. Nothing is acked that was not written.
async fn print(global: &Global, batch: Batch, left: u64) -> Result<u64> {
    let count = usize::try_from(left).unwrap_or(usize::MAX).min(batch.messages().len());
    let written = write(global, &batch.messages()[..count]);
    if let Err(error) = written {
        batch.release().await?;
        return Err(error.into());
    }
    let back: Vec<(Offset, headwater::settle::Verdict)> = batch.messages()[count..]
        .iter()
        .map(|message| (message.offset, headwater::settle::Verdict::Release))
        .collect();
    let settled = if back.is_empty() { batch.ack().await } else { batch.settle_each(back).await };
    match settled {
        Err(error) if error.kind() == ErrorKind::LeaseLost => {
            bail!("{error}; these messages will be handed out again: raise --lease");
        }
        settled => settled?,
    }
    Ok(u64::try_from(count)?)
}

fn write(global: &Global, messages: &[Message]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for message in messages {
        match global.output {
            Output::Json => writeln!(out, "{}", as_json(message))?,
            Output::Table => {
                out.write_all(&message.payload)?;
                out.write_all(b"\n")?;
            }
        }
    }
    out.flush()
}

fn as_json(message: &Message) -> Value {
    let (name, payload) = payload_as_json(message.content_type.as_deref(), &message.payload);
    json!({
        "offset": message.offset.0,
        "message_id": message.message_id,
        "key": message.key,
        "type": message.message_type,
        name: payload,
        "content_type": message.content_type,
        "headers": message.headers,
        "correlation_id": message.correlation_id,
        "created_at": message.created_at,
    })
}
