//! `headwater dead-letter`.

mod edit;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use headwater::store::{AllDeadLetters, DeadLetterSelection, FoundDeadLetter, Redriven};
use headwater::{GroupName, Headwater, TopicName};
use serde_json::{Value, json};

use crate::args::{
    DeadLetterChoice, DeadLetterCommand, DeadLetterFilter, DeadLetterListArgs, DeadLetterOf,
    DeadLetterPurgeArgs, DeadLetterRedriveArgs, DeadLetterShowArgs, Global, Output,
};
use crate::confirm;
use crate::output::{Rows, in_short, note, payload_as_json, print_objects};

/// The fields of a dead letter, in the order in which they are printed.
const FIELDS: [&str; 16] = [
    "id",
    "topic",
    "group",
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
    // Checked before the store is opened: a command refused for lack of confirmation has no effect at all.
    if let DeadLetterCommand::Purge(args) = command {
        confirm::require("dead-letter purge", args.confirmation)?;
    }
    let headwater = global.open(global.options()).await?;
    let done = match command {
        DeadLetterCommand::List(args) => list(global, &headwater, args).await,
        DeadLetterCommand::Show(args) => show(global, &headwater, args).await,
        DeadLetterCommand::Redrive(args) if args.edit || args.payload.is_some() => {
            edit::replace(global, &headwater, args).await
        }
        DeadLetterCommand::Redrive(args) => redrive(global, &headwater, args).await,
        DeadLetterCommand::Purge(args) => purge(global, &headwater, args).await,
    };
    headwater.close().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}

async fn list(global: &Global, headwater: &Headwater, args: &DeadLetterListArgs) -> Result<()> {
    let mut those = headwater.all_dead_letters();
    if let Some(topic) = &args.topic {
        those = those.topic(topic);
    }
    if let Some(group) = &args.group {
        those = those.group(group);
    }
    if args.count {
        return print_counts(global, &those.counts(|all| chosen(all, &args.filter)).await?);
    }
    let found = those.list(args.max, |all| chosen(all, &args.filter)).await?;
    if global.output == Output::Json {
        return print_objects(found.iter().map(as_json));
    }
    let mut rows = Rows::new(&["id", "topic", "group", "offset", "error"]);
    for FoundDeadLetter { topic, group, dead_letter } in found {
        rows.push(vec![
            json!(dead_letter.dead_letter_id),
            json!(topic.as_str()),
            json!(group.as_str()),
            json!(dead_letter.offset.0),
            json!(in_short(&dead_letter.error)),
        ]);
    }
    rows.print(global.output)
}

/// How many dead letters each group has, and of how many the message is gone.
fn print_counts(global: &Global, counts: &[(TopicName, GroupName, Redriven)]) -> Result<()> {
    let mut rows = Rows::new(&["topic", "group", "dead_letters", "gone"]);
    for (topic, group, Redriven { redriven, gone }) in counts {
        rows.push(vec![json!(topic.as_str()), json!(group.as_str()), json!(redriven + gone), json!(gone)]);
    }
    rows.print(global.output)
}

async fn show(global: &Global, headwater: &Headwater, args: &DeadLetterShowArgs) -> Result<()> {
    let found = find(headwater, &args.of, args.id).await?;
    let mut out = std::io::stdout().lock();
    let shown = as_json(&found);
    match global.output {
        Output::Json => writeln!(out, "{shown}")?,
        Output::Table => write_fields(&mut out, &shown)?,
    }
    Ok(out.flush()?)
}

/// One dead letter of a topic, whichever group has it.
async fn find(headwater: &Headwater, of: &DeadLetterOf, id: uuid::Uuid) -> Result<FoundDeadLetter> {
    match letters(headwater, of).show(id).await? {
        Some(found) => Ok(found),
        None => bail!("no such dead letter: {id}, topic {}; see `headwater dead-letter list`", of.topic),
    }
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
    let DeadLetterChoice { of, filter, .. } = &args.these;
    let those = letters(headwater, of);
    let done = match args.dry_run {
        true => those.counts(|all| chosen(all, filter)).await?,
        false => those.redrive(args.rate, |all| chosen(all, filter)).await?,
    };
    let mut rows = Rows::new(&["topic", "group", "dry_run", "redriven", "gone"]);
    for (topic, group, Redriven { redriven, gone }) in &done {
        rows.push(vec![
            json!(topic.as_str()),
            json!(group.as_str()),
            json!(args.dry_run),
            json!(redriven),
            json!(gone),
        ]);
    }
    rows.print(global.output)?;
    let gone: u64 = done.iter().map(|(_, _, redriven)| redriven.gone).sum();
    if done.is_empty() {
        note("no dead letters");
    } else if gone > 0 {
        note(format_args!("{gone} not redriven: their messages are no longer in the log"));
    }
    Ok(())
}

async fn purge(global: &Global, headwater: &Headwater, args: &DeadLetterPurgeArgs) -> Result<()> {
    let DeadLetterChoice { of, filter, .. } = &args.these;
    let those = letters(headwater, of);
    if !args.confirmation.yes {
        let would = those.counts(|all| chosen(all, filter)).await?;
        let would: Vec<_> = would
            .into_iter()
            .map(|(topic, group, count)| (topic, group, count.redriven + count.gone))
            .collect();
        print_purged(global, &would, true)?;
        if args.confirmation.dry_run || would.is_empty() {
            return Ok(());
        }
        confirm::ask("remove these dead letters permanently?")?;
    }
    let purged = those.purge(|all| chosen(all, filter)).await?;
    print_purged(global, &purged, false)
}

fn print_purged(global: &Global, purged: &[(TopicName, GroupName, u64)], dry_run: bool) -> Result<()> {
    let mut rows = Rows::new(&["topic", "group", "dry_run", "purged"]);
    for (topic, group, count) in purged {
        rows.push(vec![json!(topic.as_str()), json!(group.as_str()), json!(dry_run), json!(count)]);
    }
    rows.print(global.output)?;
    if purged.is_empty() {
        note("no dead letters");
    }
    Ok(())
}

fn letters(headwater: &Headwater, of: &DeadLetterOf) -> AllDeadLetters {
    let those = headwater.all_dead_letters().topic(&of.topic);
    match &of.group {
        Some(group) => those.group(group),
        None => those,
    }
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

fn as_json(found: &FoundDeadLetter) -> Value {
    let letter = &found.dead_letter;
    let (name, payload) = payload_as_json(letter.content_type.as_deref(), &letter.payload);
    json!({
        "id": letter.dead_letter_id,
        "topic": found.topic.as_str(),
        "group": found.group.as_str(),
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
