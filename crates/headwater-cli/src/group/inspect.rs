//! Queries about single messages: which are stuck, which owner acked one, which groups they wait for.

use anyhow::Result;
use headwater::{GroupName, Headwater, Offset};
use serde_json::{Value, json};

use super::topics;
use crate::args::{AcksArgs, Global, Output, RecordsArgs, StuckArgs};
use crate::output::{Rows, note};

pub(super) async fn stuck(global: &Global, headwater: &Headwater, args: &StuckArgs) -> Result<()> {
    let mut rows = Rows::new(&["topic", "group", "messages", "oldest"]);
    for topic in topics(headwater, args.topic.as_deref()).await? {
        for stuck in headwater.groups(&topic).stuck(args.older_than).await? {
            rows.push(vec![
                json!(topic),
                json!(stuck.group.as_str()),
                json!(stuck.messages),
                json!(stuck.oldest),
            ]);
        }
    }
    rows.print(global.output)
}

pub(super) async fn acks(global: &Global, headwater: &Headwater, args: &AcksArgs) -> Result<()> {
    let topic = &args.topic;
    let keeps = headwater.topics().get(topic).await?.settings.ack_log;
    let acks = headwater.groups(topic).acks(Offset(args.offset)).await?;
    let mut rows = Rows::new(&["group", "owner", "first", "last", "at"]);
    for ack in &acks {
        rows.push(vec![
            json!(ack.group.as_str()),
            json!(ack.owner.as_str()),
            json!(ack.range.first.0),
            json!(ack.range.last.0),
            json!(ack.at),
        ]);
    }
    rows.print(global.output)?;
    if acks.is_empty() && !keeps {
        note(format_args!(
            "topic {topic} has no ack_log: `headwater topic alter {topic} --ack-log` records acks from now on"
        ));
    }
    Ok(())
}

pub(super) async fn records(global: &Global, headwater: &Headwater, args: &RecordsArgs) -> Result<()> {
    let topic = &args.topic;
    let tracking = headwater.topics().get(topic).await?.settings.tracking;
    let records = headwater.groups(topic).records(args.range).await?;
    let groups = |groups: Vec<&GroupName>| -> Value {
        let names: Vec<&str> = groups.into_iter().map(GroupName::as_str).collect();
        match global.output {
            Output::Table => json!(names.join(" ")),
            Output::Json => json!(names),
        }
    };
    let mut rows = Rows::new(&["offset", "status", "required", "completed", "waiting_for", "completed_at"]);
    for record in &records {
        let waiting = record.required.iter().filter(|group| !record.completed.contains(group));
        rows.push(vec![
            json!(record.offset.0),
            json!(if record.completed_at.is_some() { "completed" } else { "pending" }),
            groups(record.required.iter().collect()),
            groups(record.completed.iter().collect()),
            groups(waiting.collect()),
            json!(record.completed_at),
        ]);
    }
    rows.print(global.output)?;
    if records.is_empty() && tracking == headwater::topic::Tracking::OffsetWatermark {
        note(format_args!("topic {topic} is in offset_watermark, which has no completion records"));
    }
    Ok(())
}
