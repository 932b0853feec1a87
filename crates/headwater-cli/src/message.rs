//! `headwater message`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use headwater::store::{MessageState, MessageStatus, Outstanding};
use headwater::{GroupName, Headwater, Offset};
use serde_json::{Map, Value, json};

use crate::args::{Global, MessageActArgs, MessageAt, MessageCommand, MessageShowArgs, Output};
use crate::output::{Fields, Rows, in_short, payload_as_json, print_objects};

pub(crate) async fn run(global: &Global, command: &MessageCommand) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let done = match command {
        MessageCommand::Show(args) => show(global, &headwater, args).await,
        MessageCommand::Skip(args) => skip(global, &headwater, args).await,
        MessageCommand::Bury(args) => bury(global, &headwater, &args.act, &args.reason).await,
        MessageCommand::Retry(args) => retry(global, &headwater, args).await,
    };
    headwater.close().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}

async fn show(global: &Global, headwater: &Headwater, args: &MessageShowArgs) -> Result<()> {
    let MessageAt { topic, offset } = &args.at;
    let mut status = headwater.groups(topic).message(Offset(*offset)).await?;
    if let Some(group) = &args.group {
        status.groups.retain(|(name, _)| name.as_str() == group);
        if status.groups.is_empty() {
            bail!("no such subscription: topic {topic}, group {group}; see `headwater group list {topic}`");
        }
    }
    let mut fields = fields_of(topic, &status);
    if global.output == Output::Json {
        let groups: Vec<Value> = status.groups.iter().map(group_as_json).collect();
        fields.push("groups", groups.into());
        return print_objects([fields.object()]);
    }
    fields.print(global.output)?;
    let mut rows = Rows::new(&["group", "state", "attempts", "owner", "due_at", "last_error"]);
    for (group, state) in &status.groups {
        let outstanding = outstanding_of(state);
        rows.push(vec![
            json!(group.as_str()),
            json!(state.as_str()),
            json!(outstanding.map(|range| range.attempts)),
            json!(outstanding.and_then(|range| range.owner.as_ref()).map(ToString::to_string)),
            json!(outstanding.and_then(|range| range.due_at)),
            json!(outstanding.and_then(|range| range.last_error.as_deref()).map(in_short)),
        ]);
    }
    rows.print(global.output)
}

/// The message itself, the payload last: it may be long.
fn fields_of(topic: &str, status: &MessageStatus) -> Fields {
    let message = &status.message;
    let (name, payload) = payload_as_json(message.content_type.as_deref(), &message.payload);
    let mut fields = Fields::default();
    fields.push("topic", json!(topic));
    fields.push("offset", json!(message.offset.0));
    fields.push("message_id", json!(message.message_id));
    fields.push("created_at", json!(message.created_at));
    for (name, value) in [
        ("key", &message.key),
        ("type", &message.message_type),
        ("content_type", &message.content_type),
        ("correlation_id", &message.correlation_id),
    ] {
        fields.push(name, json!(value));
    }
    fields.push("headers", json!(message.headers));
    fields.push(name, payload);
    fields
}

fn outstanding_of(state: &MessageState) -> Option<&Outstanding> {
    match state {
        MessageState::Outstanding(outstanding) => Some(outstanding),
        _ => None,
    }
}

fn group_as_json((group, state): &(GroupName, MessageState)) -> Value {
    let mut object = Map::new();
    object.insert("group".into(), json!(group.as_str()));
    object.insert("state".into(), json!(state.as_str()));
    if let Some(range) = outstanding_of(state) {
        object.insert("attempts".into(), json!(range.attempts));
        object.insert("owner".into(), json!(range.owner.as_ref().map(ToString::to_string)));
        object.insert("due_at".into(), json!(range.due_at));
        object.insert("last_error".into(), json!(range.last_error));
        object.insert("token".into(), json!(range.token.map(|token| token.0)));
    }
    if let MessageState::Buried(id) = state {
        object.insert("dead_letter".into(), json!(id));
    }
    object.into()
}

async fn skip(global: &Global, headwater: &Headwater, args: &MessageActArgs) -> Result<()> {
    let MessageAt { topic, offset } = &args.at;
    headwater.groups(topic).skip(&args.group, Offset(*offset), args.force).await?;
    print_state(global, headwater, args).await
}

async fn bury(global: &Global, headwater: &Headwater, args: &MessageActArgs, reason: &str) -> Result<()> {
    let MessageAt { topic, offset } = &args.at;
    headwater.groups(topic).bury(&args.group, Offset(*offset), reason, args.force).await?;
    print_state(global, headwater, args).await
}

async fn retry(global: &Global, headwater: &Headwater, args: &MessageActArgs) -> Result<()> {
    let MessageAt { topic, offset } = &args.at;
    headwater.groups(topic).retry(&args.group, Offset(*offset), args.force).await?;
    print_state(global, headwater, args).await
}

/// The state after the act.
async fn print_state(global: &Global, headwater: &Headwater, args: &MessageActArgs) -> Result<()> {
    let MessageAt { topic, offset } = &args.at;
    let status = headwater.groups(topic).message(Offset(*offset)).await?;
    let of = status.groups.iter().find(|(name, _)| name.as_str() == args.group);
    let mut rows = Rows::new(&["topic", "group", "offset", "state"]);
    rows.push(vec![
        json!(topic),
        json!(args.group),
        json!(offset),
        json!(of.map(|(_, state)| state.as_str())),
    ]);
    rows.print(global.output)
}
