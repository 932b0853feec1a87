//! `headwater consume`.

mod batches;
mod exec;
mod subscribe;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use headwater::settle::Verdict;
use headwater::{Batch, ErrorKind, Headwater, Message, Offset};

use self::batches::Batches;
use crate::args::{ConsumeArgs, Global, Output};
use crate::group::with_fan_out_hint;
use crate::json_line;
use crate::progress::Counted;
use crate::reader;
use crate::stop::Stop;

/// The exit code of `--fail-if-empty`.
const EMPTY: u8 = 3;
/// Messages per claim where nothing else is given.
const BATCH: u32 = 100;
/// How long the lease of a command lasts where nothing else is given. It is extended while the command runs, so this is how
/// long others wait for the messages of a process that was killed.
const EXEC_LEASE: Duration = Duration::from_secs(30);

pub(crate) async fn run(global: &Global, args: &ConsumeArgs) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    existing(&headwater, &args.topic).await?;
    subscribe::find_or_create(&headwater, args).await?;
    let mut batches = open(&headwater, args).await?;
    let consumed = match &args.exec {
        Some(command) => exec::drain(&mut batches, command, args.concurrency.unwrap_or(1)).await,
        None => drain(global, &mut batches).await,
    };
    batches.consumer.close().await?;
    headwater.close().await?;
    let is_empty = consumed? == 0;
    Ok(if is_empty && args.fail_if_empty { EMPTY.into() } else { ExitCode::SUCCESS })
}

/// A store may create topics on publish. For a command that reads, a missing topic is a mistyped name.
pub(crate) async fn existing(headwater: &Headwater, topic: &str) -> Result<()> {
    match headwater.topics().get(topic).await {
        Err(error) if error.kind() == ErrorKind::NoSuchTopic => {
            bail!("no such topic {topic}; create it with `headwater topic create {topic}`, or publish to it")
        }
        found => Ok(found.map(drop)?),
    }
}

async fn open<'a>(headwater: &'a Headwater, args: &'a ConsumeArgs) -> Result<Batches<'a>> {
    let is_exec = args.exec.is_some();
    let is_pipe = !is_exec && reader::is_pipe();
    // Never claim more than will be printed.
    let max = args.max.map_or(u32::MAX, |max| u32::try_from(max).unwrap_or(u32::MAX).max(1));
    let batch = args.batch.unwrap_or(if is_pipe || is_exec { 1 } else { BATCH });
    let mut builder = headwater.consumer(&args.topic, &args.group).batch(batch.min(max));
    if let Some(lease) = args.lease.or(is_exec.then_some(EXEC_LEASE)) {
        builder = builder.lease(lease);
    }
    if let Some(timeout) = args.timeout {
        builder = builder.timeout(timeout);
    }
    // The current batch is printed and acked, the rest released. After a second signal the messages are redelivered when
    // their leases expire.
    let stop = match is_exec {
        true => Stop::in_steps(exec::STOPPING)?,
        false => Stop::on_signals("stopping after the current batch; again to stop at once")?,
    };
    let consumer = builder.open().await.map_err(|error| with_fan_out_hint(error, &args.topic))?;
    Ok(Batches { headwater, args, consumer, stop, is_pipe, is_paused: false })
}

/// Prints messages until the end; returns how many.
async fn drain(global: &Global, batches: &mut Batches<'_>) -> Result<u64> {
    let max = batches.args.max.unwrap_or(u64::MAX);
    let mut consumed = 0;
    let mut progress = Counted::new("consumed");
    while consumed < max {
        let Some(batch) = batches.next().await? else { break };
        consumed += match batches.is_pipe {
            true => hand_over(global, batch, max - consumed).await?,
            false => print(global, batch, max - consumed).await?,
        };
        progress.at(consumed);
    }
    Ok(consumed)
}

/// Hands up to `left` messages to the reader of the pipe, one at a time, and acks those it has taken; the rest is released.
/// The lease is extended for as long as that takes.
async fn hand_over(global: &Global, batch: Batch, left: u64) -> Result<u64> {
    let (mut taken, mut failed) = (0, None);
    // It blocks the main thread, which runs nothing else: neither signals nor leases depend on it.
    let handled = batch.handle(|message, _| {
        let mut verdict = Verdict::Release;
        if taken < left && failed.is_none() {
            match reader::hand_over(|out| write(out, global.output, &message)) {
                Ok(()) => (taken, verdict) = (taken + 1, Verdict::Done),
                Err(error) => failed = Some(error),
            }
        }
        std::future::ready(verdict)
    });
    settled(handled.await)?;
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(taken),
    }
}

/// Prints up to `left` messages and acks them; the rest is released. Nothing is acked that was not written.
async fn print(global: &Global, batch: Batch, left: u64) -> Result<u64> {
    let count = usize::try_from(left).unwrap_or(usize::MAX).min(batch.messages().len());
    let written = write_all(global.output, &batch.messages()[..count]);
    if let Err(error) = written {
        batch.release().await?;
        return Err(error.into());
    }
    let back: Vec<(Offset, Verdict)> =
        batch.messages()[count..].iter().map(|message| (message.offset, Verdict::Release)).collect();
    settled(if back.is_empty() { batch.ack().await } else { batch.settle_each(back).await })?;
    Ok(u64::try_from(count)?)
}

fn settled(result: headwater::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::LeaseLost => {
            bail!("{error}; these messages will be handed out again: raise --lease");
        }
        result => Ok(result?),
    }
}

fn write_all(output: Output, messages: &[Message]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    messages.iter().try_for_each(|message| write(&mut out, output, message))?;
    out.flush()
}

fn write(out: &mut impl Write, output: Output, message: &Message) -> std::io::Result<()> {
    match output {
        Output::Json => writeln!(out, "{}", json_line::print(message)?),
        Output::Table => {
            out.write_all(&message.payload)?;
            out.write_all(b"\n")
        }
    }
}
