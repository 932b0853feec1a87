//! `headwater parked`: dead letters that are no group's.

use std::process::ExitCode;

use anyhow::{Result, bail};
use headwater::Headwater;
use headwater::store::{AnyDeadLetter, AnyDeadLetterSelection, DeadLetterSource};
use serde_json::{Value, json};

use crate::args::{Global, Output, ParkedCommand, ParkedDeleteArgs, ParkedListArgs, ParkedOne, ParkedThese};
use crate::confirm;
use crate::output::{Rows, in_short, note, payload_as_json, print_fields, print_objects};

/// The fields of a dead letter, in the order in which they are printed.
const FIELDS: [&str; 16] = [
    "id",
    "source",
    "outbox_id",
    "topic",
    "command_id",
    "name",
    "business_key",
    "failed_status",
    "error_class",
    "error",
    "attempts",
    "parked_by",
    "parked_at",
    "headers",
    "payload",
    "payload_hex",
];

pub(crate) async fn run(global: &Global, command: &ParkedCommand) -> Result<ExitCode> {
    if let ParkedCommand::Delete(args) = command {
        confirm::require("parked delete", args.confirmation)?;
    }
    let headwater = global.open(global.options()).await?;
    let done = match command {
        ParkedCommand::List(args) => list(global, &headwater, args).await,
        ParkedCommand::Show(args) => show(global, &headwater, args).await,
        ParkedCommand::Redrive(args) => redrive(global, &headwater, args).await,
        ParkedCommand::Delete(args) => delete(global, &headwater, args).await,
    };
    headwater.close().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}

/// Those of one source, or of both.
async fn found(
    headwater: &Headwater,
    max: u32,
    source: Option<&str>,
    choose: impl Fn(AnyDeadLetterSelection) -> AnyDeadLetterSelection,
) -> Result<Vec<AnyDeadLetter>> {
    let mut found = Vec::new();
    if source != Some("command") {
        found.extend(headwater.dead_letters().list(max, |all| choose(all).of_outbox()).await?);
    }
    if source != Some("outbox") {
        found.extend(headwater.dead_letters().list(max, |all| choose(all).of_commands()).await?);
    }
    found.sort_by_key(|one| one.parked_at);
    found.truncate(max as usize);
    Ok(found)
}

async fn list(global: &Global, headwater: &Headwater, args: &ParkedListArgs) -> Result<()> {
    let choose = |mut all: AnyDeadLetterSelection| {
        all = args.name.as_ref().map_or(all.clone(), |name| all.name(name));
        all = args.key.as_ref().map_or(all.clone(), |key| all.business_key(key));
        args.error_contains.as_ref().map_or(all.clone(), |text| all.error_contains(text))
    };
    let found = found(headwater, args.max, args.source.as_deref(), choose).await?;
    if global.output == Output::Json {
        return print_objects(found.iter().map(as_json));
    }
    let mut rows = Rows::new(&["id", "source", "name", "business_key", "attempts", "error"]);
    for one in found {
        rows.push(vec![
            json!(one.dead_letter_id),
            json!(one.source.to_string()),
            json!(one.name),
            json!(one.business_key),
            json!(one.attempts),
            json!(one.error_message.as_deref().map(in_short)),
        ]);
    }
    rows.print(global.output)
}

async fn show(global: &Global, headwater: &Headwater, args: &ParkedOne) -> Result<()> {
    let Some(one) = headwater.dead_letters().show(args.id).await? else {
        bail!("no such dead letter: {}; see `headwater parked list`", args.id);
    };
    let shown = as_json(&one);
    print_fields(global.output, &shown, &FIELDS)
}

async fn redrive(global: &Global, headwater: &Headwater, these: &ParkedThese) -> Result<()> {
    let done = headwater.dead_letters().redrive(&these.ids).await?;
    let mut rows = Rows::new(&["redriven", "gone"]);
    rows.push(vec![json!(done.redriven), json!(done.gone)]);
    rows.print(global.output)?;
    if done.redriven == 0 {
        note("no dead letters");
    }
    Ok(())
}

async fn delete(global: &Global, headwater: &Headwater, args: &ParkedDeleteArgs) -> Result<()> {
    let mut rows = Rows::new(&["dry_run", "deleted"]);
    if !args.confirmation.yes {
        let max = u32::try_from(args.these.ids.len()).unwrap_or(u32::MAX);
        let would = found(headwater, max, None, |all| all.ids(args.these.ids.iter().copied())).await?.len();
        rows.push(vec![json!(true), json!(would)]);
        rows.print(global.output)?;
        if args.confirmation.dry_run || would == 0 {
            return Ok(());
        }
        confirm::ask("delete these dead letters permanently?")?;
        rows = Rows::new(&["dry_run", "deleted"]);
    }
    let deleted = headwater.dead_letters().delete(&args.these.ids).await?;
    rows.push(vec![json!(false), json!(deleted)]);
    rows.print(global.output)
}

fn as_json(one: &AnyDeadLetter) -> Value {
    let (name, payload) = payload_as_json(one.content_type.as_deref(), &one.payload);
    let (outbox_id, topic) = match &one.source {
        DeadLetterSource::Outbox { id, topic } => (Some(*id), Some(topic.as_str())),
        DeadLetterSource::Command { topic } => (None, topic.as_deref()),
        DeadLetterSource::Subscription { topic, .. } => (None, Some(topic.as_str())),
    };
    json!({
        "id": one.dead_letter_id,
        "source": one.source.to_string(),
        "outbox_id": outbox_id,
        "topic": topic,
        "command_id": one.command_id,
        "name": one.name,
        "business_key": one.business_key,
        "failed_status": one.failed_status,
        "error_class": one.error_class,
        "error": one.error_message,
        "attempts": one.attempts,
        "parked_by": one.parked_by,
        "parked_at": one.parked_at,
        "headers": one.headers,
        name: payload,
    })
}
