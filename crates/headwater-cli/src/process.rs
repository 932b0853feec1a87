//! `headwater process`.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use headwater::Headwater;
use headwater::process::{ProcessInstance, ProcessLogEntry, ProcessStatus};
use serde_json::{Value, json};

use crate::args::{
    Global, Output, ProcessCommand, ProcessFailArgs, ProcessListArgs, ProcessLogArgs, ProcessOne,
    ProcessReasonArgs, ProcessShowArgs,
};
use crate::confirm;
use crate::output::{Fields, Rows, in_short, note, print_objects};

pub(crate) async fn run(global: &Global, command: &ProcessCommand) -> Result<ExitCode> {
    // Checked before the store is opened: a command refused for lack of confirmation has no effect at all.
    if let ProcessCommand::Fail(args) = command {
        confirm::require("process fail", args.confirmation)?;
    }
    let headwater = global.open(global.options()).await?;
    let done = match command {
        ProcessCommand::List(args) => list(global, &headwater, args).await,
        ProcessCommand::Show(args) => show(global, &headwater, args).await,
        ProcessCommand::Log(args) => log(global, &headwater, args).await,
        ProcessCommand::Pause(args) => pause(global, &headwater, args).await,
        ProcessCommand::Resume(args) => resume(global, &headwater, args).await,
        ProcessCommand::Retry(args) => retry(global, &headwater, args).await,
        ProcessCommand::Fail(args) => fail(global, &headwater, args).await,
    };
    headwater.close().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}

async fn list(global: &Global, headwater: &Headwater, args: &ProcessListArgs) -> Result<()> {
    let processes = headwater.processes();
    let found = match args.parked {
        true => processes.parked(args.max).await?,
        false => processes.list(args.process_type.as_deref(), args.status, args.max).await?,
    };
    if global.output == Output::Json {
        return print_objects(found.iter().map(|process| as_fields(process).object()));
    }
    let mut rows = Rows::new(&["id", "type", "key", "status", "step", "retries", "updated_at"]);
    for process in found {
        rows.push(vec![
            json!(process.id()),
            json!(process.process_type()),
            json!(process.business_key()),
            json!(process.status().as_str()),
            json!(process.current_step()),
            json!(process.retries()),
            json!(process.updated_at()),
        ]);
    }
    rows.print(global.output)
}

/// The fields of a process, in the order in which they are printed.
fn as_fields(process: &ProcessInstance) -> Fields {
    let mut fields = Fields::default();
    fields.push("id", json!(process.id()));
    fields.push("type", json!(process.process_type()));
    fields.push("key", json!(process.business_key()));
    fields.push("status", json!(process.status().as_str()));
    fields.push("paused_in", json!(process.paused_in().map(ProcessStatus::as_str)));
    fields.push("step", json!(process.current_step()));
    fields.push("retries", json!(process.retries()));
    fields.push("version", json!(process.version()));
    fields.push("created_at", json!(process.created_at()));
    fields.push("updated_at", json!(process.updated_at()));
    // As it is stored for people; programs get JSON.
    let data = process.data().map(headwater::process::ProcessData::as_str);
    fields.said("data", data.map_or(Value::Null, as_json), data.unwrap_or_default());
    fields
}

/// JSON as itself, as far as a number has its place in it; other text as text.
fn as_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

async fn show(global: &Global, headwater: &Headwater, args: &ProcessShowArgs) -> Result<()> {
    let processes = headwater.processes();
    let found = match (args.id, &args.process_type, &args.key) {
        (Some(id), ..) => processes.find_by_id(id).await?.ok_or_else(|| not_found(id)),
        (None, Some(process_type), Some(key)) => {
            let missing =
                || anyhow!("no such process: type {process_type}, key {key}; see `headwater process list`");
            processes.find_by_business_key(process_type, key).await?.ok_or_else(missing)
        }
        _ => unreachable!("the arguments require one of the two"),
    }?;
    let mut fields = as_fields(&found);
    if let Some(last) = processes.log(found.id(), 1).await?.first() {
        let said = format!("{} {} at {}", last.event.tag(), said(last), last.at);
        fields.said("last_event", entry_as_json(last), said.replace("  ", " "));
    }
    fields.print(global.output)
}

fn not_found(id: uuid::Uuid) -> anyhow::Error {
    anyhow!("no such process: {id}; see `headwater process list`")
}

async fn log(global: &Global, headwater: &Headwater, args: &ProcessLogArgs) -> Result<()> {
    let entries = headwater.processes().log(args.one.id, args.max).await?;
    if entries.is_empty() && args.max != Some(0) {
        return Err(not_found(args.one.id));
    }
    if global.output == Output::Json {
        return print_objects(entries.iter().map(entry_as_json));
    }
    let mut rows = Rows::new(&["sequence", "at", "event", "status", "said"]);
    for entry in &entries {
        rows.push(vec![
            json!(entry.sequence),
            json!(entry.at),
            json!(entry.event.tag()),
            json!(entry.change.status.map(ProcessStatus::as_str)),
            json!(in_short(&said(entry))),
        ]);
    }
    rows.print(global.output)
}

/// What an event is about: the step and the reason; of an unknown one all of it.
fn said(entry: &ProcessLogEntry) -> String {
    let event = &entry.event;
    match (event.step(), event.reason()) {
        (Some(step), Some(reason)) => format!("{step}: {reason}"),
        (Some(step), None) => step.to_owned(),
        (None, Some(reason)) => reason.to_owned(),
        (None, None) => event.fields().as_str().to_owned(),
    }
}

fn entry_as_json(entry: &ProcessLogEntry) -> Value {
    let change = &entry.change;
    json!({
        "sequence": entry.sequence,
        "at": entry.at,
        "event": entry.event.tag(),
        "fields": as_json(entry.event.fields().as_str()),
        "status": change.status.map(ProcessStatus::as_str),
        "step": change.current_step.as_ref().map(|step| step.as_deref().unwrap_or_default()),
        "retries": change.retries,
    })
}

async fn pause(global: &Global, headwater: &Headwater, args: &ProcessReasonArgs) -> Result<()> {
    print(global, &headwater.processes().pause(args.one.id, &args.reason).await?)
}

async fn resume(global: &Global, headwater: &Headwater, args: &ProcessReasonArgs) -> Result<()> {
    print(global, &headwater.processes().resume(args.one.id, &args.reason).await?)
}

async fn retry(global: &Global, headwater: &Headwater, one: &ProcessOne) -> Result<()> {
    let process = headwater.processes().retry(one.id).await?;
    note("its manager tries it again as soon as it runs; see `headwater process log`");
    print(global, &process)
}

async fn fail(global: &Global, headwater: &Headwater, args: &ProcessFailArgs) -> Result<()> {
    let (id, processes) = (args.of.one.id, headwater.processes());
    if !args.confirmation.yes {
        let process = processes.find_by_id(id).await?.ok_or_else(|| not_found(id))?;
        print(global, &process)?;
        if args.confirmation.dry_run {
            return Ok(());
        }
        confirm::ask("end this process as FAILED? Completed steps are not undone")?;
    }
    print(global, &processes.fail(id, &args.of.reason).await?)
}

fn print(global: &Global, process: &ProcessInstance) -> Result<()> {
    let mut rows = Rows::new(&["id", "status", "step"]);
    rows.push(vec![json!(process.id()), json!(process.status().as_str()), json!(process.current_step())]);
    rows.print(global.output)
}
