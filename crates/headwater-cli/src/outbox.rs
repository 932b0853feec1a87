//! `headwater outbox`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use headwater::Headwater;
use headwater::outbox::{OutboxEntry, OutboxSelection, OutboxStatus};
use serde_json::{Value, json};

use crate::args::{
    Global, OutboxCommand, OutboxListArgs, OutboxOne, OutboxRecoverArgs, OutboxRequeueArgs, Output,
};
use crate::output::{Rows, in_short, payload_as_json, print_fields, print_objects};

/// The fields of an entry, in the order in which they are printed.
const FIELDS: [&str; 16] = [
    "id",
    "status",
    "category",
    "topic",
    "key",
    "type",
    "attempts",
    "next_at",
    "claimed_by",
    "claimed_at",
    "created_at",
    "published_at",
    "last_error",
    "headers",
    "payload",
    "payload_hex",
];
/// Entries that one call requeues.
const PAGE: u32 = 1_000;

pub(crate) async fn run(global: &Global, command: &OutboxCommand) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let done = match command {
        OutboxCommand::List(args) => list(global, &headwater, args).await,
        OutboxCommand::Show(args) => show(global, &headwater, args).await,
        OutboxCommand::Requeue(args) => requeue(global, &headwater, args).await,
        OutboxCommand::Recover(args) => recover(global, &headwater, args).await,
    };
    headwater.close().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}

async fn list(global: &Global, headwater: &Headwater, args: &OutboxListArgs) -> Result<()> {
    let choose = |mut all: OutboxSelection| {
        all = all.after(args.after);
        all = args.status.map_or(all.clone(), |status| all.status(status));
        all = args.category.map_or(all.clone(), |category| all.category(category));
        all = args.topic.as_ref().map_or(all.clone(), |topic| all.topic(topic));
        args.key.as_ref().map_or(all.clone(), |key| all.key(key))
    };
    let entries = headwater.outbox().list(args.max, choose).await?;
    if global.output == Output::Json {
        return print_objects(entries.iter().map(as_json));
    }
    let mut rows = Rows::new(&["id", "status", "topic", "type", "key", "attempts", "next_at", "last_error"]);
    for entry in entries {
        rows.push(vec![
            json!(entry.id),
            json!(entry.status.as_str()),
            json!(entry.topic),
            json!(entry.entry_type),
            json!(entry.key),
            json!(entry.attempts),
            json!(entry.next_at),
            json!(entry.last_error.as_deref().map(in_short)),
        ]);
    }
    rows.print(global.output)
}

async fn show(global: &Global, headwater: &Headwater, one: &OutboxOne) -> Result<()> {
    let Some(entry) = headwater.outbox().show(one.id).await? else {
        bail!("no such outbox entry: {}; see `headwater outbox list`", one.id);
    };
    let shown = as_json(&entry);
    print_fields(global.output, &shown, &FIELDS)
}

async fn requeue(global: &Global, headwater: &Headwater, args: &OutboxRequeueArgs) -> Result<()> {
    let outbox = headwater.outbox();
    let mut requeued = Vec::new();
    if args.parked {
        loop {
            let parked = outbox.list(PAGE, |all| {
                let all = all.status(OutboxStatus::Parked);
                args.topic.as_ref().map_or(all.clone(), |topic| all.topic(topic))
            });
            let parked = parked.await?;
            let done = if parked.is_empty() { Vec::new() } else { outbox.requeue(&parked).await? };
            if done.is_empty() {
                break;
            }
            requeued.extend(done);
        }
    } else {
        requeued = outbox.requeue(&args.ids).await?;
        if requeued.is_empty() {
            bail!(
                "nothing was requeued: an entry has to be FAILED or PARKED; see `headwater outbox show {}`",
                args.ids[0]
            );
        }
    }
    let mut rows = Rows::new(&["requeued"]);
    rows.push(vec![json!(requeued.len())]);
    rows.print(global.output)
}

async fn recover(global: &Global, headwater: &Headwater, args: &OutboxRecoverArgs) -> Result<()> {
    let recovered = headwater.outbox().recover_stuck(args.older_than).await?;
    let mut rows = Rows::new(&["recovered"]);
    rows.push(vec![json!(recovered)]);
    rows.print(global.output)
}

fn as_json(entry: &OutboxEntry) -> Value {
    let (name, payload) = payload_as_json(None, &entry.payload);
    json!({
        "id": entry.id,
        "status": entry.status.as_str(),
        "category": entry.category.as_str(),
        "topic": entry.topic,
        "key": entry.key,
        "type": entry.entry_type,
        "attempts": entry.attempts,
        "next_at": entry.next_at,
        "claimed_by": entry.claimed_by,
        "claimed_at": entry.claimed_at,
        "created_at": entry.created_at,
        "published_at": entry.published_at,
        "last_error": entry.last_error,
        "headers": entry.headers,
        name: payload,
    })
}
