//! `headwater group`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use headwater::{GroupName, Headwater, Outstanding, SubscriptionStatus, TopicName};
use serde_json::{Value, json};

use crate::args::{Global, GroupCommand, GroupListArgs, GroupShowArgs, Output};
use crate::output::{Rows, in_short};

pub(crate) async fn run(global: &Global, command: &GroupCommand) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let done = match command {
        GroupCommand::List(args) => list(global, &headwater, args).await,
        GroupCommand::Show(args) => show(global, &headwater, args).await,
    };
    headwater.close().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}

async fn list(global: &Global, headwater: &Headwater, args: &GroupListArgs) -> Result<()> {
    let topic = TopicName::new(&args.topic)?;
    let groups = headwater.store().subscriptions(&topic).await?;
    let head = head_of(headwater, &topic).await?;
    let mut rows =
        Rows::new(&["group", "next", "floor", "lag", "leased", "waiting", "dead_letters", "reassigned"]);
    for group in groups {
        rows.push(vec![
            json!(group.group.as_str()),
            json!(group.next.0),
            json!(group.floor.0),
            json!(lag(&group, head)),
            json!(group.leased),
            json!(group.waiting),
            json!(group.dead_letters),
            json!(group.reassigned),
        ]);
    }
    rows.print(global.output)
}

/// How far the topic is. Where nobody consumes, PostgreSQL has not looked at what came last: so it is told to.
async fn head_of(headwater: &Headwater, topic: &TopicName) -> Result<i64> {
    if let Err(error) = headwater.store().maintain().await {
        eprintln!("lag may be too low, the end of the log could not be looked for: {error}");
    }
    let topics = headwater.store().topics().await?;
    Ok(topics.iter().find(|status| status.topic.name == *topic).map_or(0, |status| status.head.0))
}

/// Offsets between what is done and the end of the log, as in the metric of the same name.
fn lag(group: &SubscriptionStatus, head: i64) -> i64 {
    (head - group.floor.0).max(0)
}

async fn show(global: &Global, headwater: &Headwater, args: &GroupShowArgs) -> Result<()> {
    let (topic, name) = (TopicName::new(&args.topic)?, GroupName::new(&args.group)?);
    let groups = headwater.store().subscriptions(&topic).await?;
    let Some(group) = groups.into_iter().find(|group| group.group == name) else {
        bail!("no such subscription: topic {topic}, group {name}");
    };
    let mut rows = Rows::new(&[
        "first",
        "last",
        "lane",
        "state",
        "owner",
        "attempts",
        "due_at",
        "key",
        "suspect",
        "last_error",
    ]);
    for part in headwater.store().outstanding(group.subscription_id, args.max).await? {
        rows.push(row_of(&part, global.output));
    }
    rows.print(global.output)
}

fn row_of(part: &Outstanding, output: Output) -> Vec<Value> {
    let error = part.last_error.as_deref();
    vec![
        json!(part.range.first.0),
        json!(part.range.last.0),
        json!(part.lane),
        json!(part.state.as_str()),
        json!(part.owner.as_ref().map(headwater::Owner::as_str)),
        json!(part.attempts),
        json!(part.due_at),
        json!(part.key),
        json!(part.suspect),
        match output {
            Output::Table => json!(error.map(in_short)),
            Output::Json => json!(error),
        },
    ]
}
