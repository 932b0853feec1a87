//! `headwater dead-letter`.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use headwater::store::{DeadLetter, DeadLetterSelection};
use headwater::{DeadLetters, ErrorKind, Headwater};
use serde_json::{Value, json};

use crate::args::{
    DeadLetterCommand, DeadLetterFilter, DeadLetterListArgs, DeadLetterOf, DeadLetterPurgeArgs,
    DeadLetterRedriveArgs, DeadLetterShowArgs, Global, Output,
};
use crate::output::{Rows, in_short, payload_as_json, with_hint};

/// The fields of a dead letter, in the order in which they are printed.
const FIELDS: [&str; 14] = [
    "id",
    "offset",
    "message_id",
    "key",
    "type",
    "error",
    "attempts",
    "buried_at",
    "created_at",
    "content_type",
    "headers",
    "correlation_id",
    "payload",
    "payload_hex",
];

pub(crate) async fn run(global: &Global, command: &DeadLetterCommand) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let done = match command {
        DeadLetterCommand::List(args) => list(global, &headwater, args).await,
        DeadLetterCommand::Show(args) => show(global, &headwater, args).await,
        DeadLetterCommand::Redrive(args) => redrive(global, &headwater, args).await,
        DeadLetterCommand::Purge(args) => purge(global, &headwater, args).await,
    };
    headwater.close().await?;
    done.map_err(|error| with_hint(error, |error| without_group(command, error)))?;
    Ok(ExitCode::SUCCESS)
}

/// Without `--group` the group is "default", which rarely exists: the error then has to mention the option.
fn without_group(command: &DeadLetterCommand, error: &headwater::Error) -> Option<String> {
    let of = match command {
        DeadLetterCommand::List(args) => &args.of,
        DeadLetterCommand::Show(args) => &args.of,
        DeadLetterCommand::Redrive(args) => &args.of,
        DeadLetterCommand::Purge(args) => &args.these.of,
    };
    let is_unnamed = error.kind() == ErrorKind::NoSuchSubscription && of.group == "default";
    is_unnamed.then(|| "name the group that gave up on them with --group".into())
}

async fn list(global: &Global, headwater: &Headwater, args: &DeadLetterListArgs) -> Result<()> {
    let letters = letters(headwater, &args.of);
    let found = letters.select(args.max, |all| chosen(all, &args.filter)).await?;
    if global.output == Output::Json {
        let mut out = std::io::stdout().lock();
        for letter in &found {
            writeln!(out, "{}", as_json(letter))?;
        }
        return Ok(out.flush()?);
    }
    let mut rows = Rows::new(&["id", "offset", "key", "type", "attempts", "buried_at", "error"]);
    for letter in found {
        rows.push(vec![
            json!(letter.dead_letter_id),
            json!(letter.offset.0),
            json!(letter.key),
            json!(letter.message_type),
            json!(letter.attempts),
            json!(letter.buried_at),
            json!(in_short(&letter.error)),
        ]);
    }
    rows.print(global.output)
}

async fn show(global: &Global, headwater: &Headwater, args: &DeadLetterShowArgs) -> Result<()> {
    let Some(letter) = letters(headwater, &args.of).show(args.id).await? else {
        bail!("no such dead letter: {}, topic {}, group {}", args.id, args.of.topic, args.of.group);
    };
    let mut out = std::io::stdout().lock();
    let letter = as_json(&letter);
    match global.output {
        Output::Json => writeln!(out, "{letter}")?,
        Output::Table => write_fields(&mut out, &letter)?,
    }
    Ok(out.flush()?)
}

/// One field per line, the payload last: it may be long.
fn write_fields(out: &mut impl Write, letter: &Value) -> Result<()> {
    for name in FIELDS {
        match &letter[name] {
            Value::Null => {}
            Value::String(text) => writeln!(out, "{name:<15} {text}")?,
            value => writeln!(out, "{name:<15} {value}")?,
        }
    }
    Ok(())
}

async fn redrive(global: &Global, headwater: &Headwater, args: &DeadLetterRedriveArgs) -> Result<()> {
    let done = letters(headwater, &args.of).redrive(|all| chosen(all, &args.filter)).await?;
    let mut rows = Rows::new(&["redriven", "gone"]);
    rows.push(vec![json!(done.redriven), json!(done.gone)]);
    rows.print(global.output)?;
    if done.gone > 0 {
        eprintln!("{} not redriven: their messages are no longer in the log", done.gone);
    }
    Ok(())
}

async fn purge(global: &Global, headwater: &Headwater, args: &DeadLetterPurgeArgs) -> Result<()> {
    let DeadLetterRedriveArgs { of, filter, .. } = &args.these;
    let purged = letters(headwater, of).purge(|all| chosen(all, filter)).await?;
    let mut rows = Rows::new(&["purged"]);
    rows.push(vec![json!(purged)]);
    rows.print(global.output)
}

fn letters(headwater: &Headwater, of: &DeadLetterOf) -> DeadLetters {
    headwater.dead_letters(&of.topic, &of.group)
}

fn chosen(mut selection: DeadLetterSelection, filter: &DeadLetterFilter) -> DeadLetterSelection {
    if !filter.ids.is_empty() {
        selection = selection.ids(filter.ids.iter().copied());
    }
    selection.key.clone_from(&filter.key);
    selection.message_type.clone_from(&filter.message_type);
    selection.error_contains.clone_from(&filter.error_contains);
    selection.buried_after = filter.buried_after;
    selection.buried_before = filter.buried_before;
    selection
}

fn as_json(letter: &DeadLetter) -> Value {
    let (name, payload) = payload_as_json(letter.content_type.as_deref(), &letter.payload);
    json!({
        "id": letter.dead_letter_id,
        "offset": letter.offset.0,
        "message_id": letter.message_id,
        "key": letter.key,
        "type": letter.message_type,
        "error": letter.error,
        "attempts": letter.attempts,
        "buried_at": letter.buried_at,
        "created_at": letter.created_at,
        "content_type": letter.content_type,
        "headers": letter.headers,
        "correlation_id": letter.correlation_id,
        name: payload,
    })
}
