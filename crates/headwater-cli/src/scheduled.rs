//! `headwater scheduled`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use headwater::Headwater;
use serde_json::json;

use crate::args::{Global, ScheduledCommand, ScheduledListArgs, ScheduledMoveArgs, ScheduledOne};
use crate::output::Rows;

pub(crate) async fn run(global: &Global, command: &ScheduledCommand) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let done = match command {
        ScheduledCommand::List(args) => list(global, &headwater, args).await,
        ScheduledCommand::Cancel(args) => cancel(global, &headwater, args).await,
        ScheduledCommand::Move(args) => reschedule(global, &headwater, args).await,
    };
    headwater.close().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}

async fn list(global: &Global, headwater: &Headwater, args: &ScheduledListArgs) -> Result<()> {
    let mut rows = Rows::new(&["deliver_at", "message_id", "key", "type", "payload_bytes"]);
    for message in headwater.scheduled(&args.topic).list(args.max).await? {
        rows.push(vec![
            json!(message.deliver_at),
            json!(message.message_id),
            json!(message.key),
            json!(message.message_type),
            json!(message.payload_bytes),
        ]);
    }
    rows.print(global.output)
}

async fn cancel(global: &Global, headwater: &Headwater, one: &ScheduledOne) -> Result<()> {
    if !headwater.scheduled(&one.topic).cancel(one.message_id).await? {
        return not_scheduled(one);
    }
    let mut rows = Rows::new(&["cancelled"]);
    rows.push(vec![json!(one.message_id)]);
    rows.print(global.output)
}

async fn reschedule(global: &Global, headwater: &Headwater, args: &ScheduledMoveArgs) -> Result<()> {
    let (one, scheduled) = (&args.one, headwater.scheduled(&args.one.topic));
    let moved = match (args.deliver_at, args.delay) {
        (Some(at), _) => scheduled.reschedule(one.message_id, at).await?,
        (None, delay) => scheduled.delay(one.message_id, delay.unwrap_or_default()).await?,
    };
    if !moved {
        return not_scheduled(one);
    }
    let mut rows = Rows::new(&["moved"]);
    rows.push(vec![json!(one.message_id)]);
    rows.print(global.output)
}

fn not_scheduled(one: &ScheduledOne) -> Result<()> {
    bail!(
        "message {} is not scheduled in topic {}: it was delivered or cancelled, or never scheduled; nothing was changed",
        one.message_id,
        one.topic
    )
}
