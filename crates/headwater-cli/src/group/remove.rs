//! Giving a group up, at once or in order. What goes with it is shown first: none of it comes back.

use anyhow::{Context, Result};
use headwater::{GroupName, Headwater, SubscriptionState, TopicName, Transition};
use serde_json::json;

use super::{change, confirm, find, names, status_of};
use crate::args::{CancelArgs, Global, Meant, RemoveArgs};
use crate::output::Rows;

pub(super) async fn cancel(global: &Global, headwater: &Headwater, args: &CancelArgs) -> Result<()> {
    let (topic, group) = names(&args.of)?;
    let question = format!("give up group {group} on topic {topic}? Its leases are lost at once");
    if !is_meant(global, headwater, &topic, &group, args.meant, &question).await? {
        return Ok(());
    }
    change::shift(global, headwater, &args.of, Transition::Cancel).await
}

pub(super) async fn remove(global: &Global, headwater: &Headwater, args: &RemoveArgs) -> Result<()> {
    let (topic, group) = names(&args.of)?;
    let question = format!("remove group {group} on topic {topic} with its dead letters?");
    if !is_meant(global, headwater, &topic, &group, args.meant, &question).await? {
        return Ok(());
    }
    let removed = match headwater.groups(topic.as_str()).remove(group.as_str(), args.wait).await {
        Ok(removed) => removed,
        Err(error) => {
            let left = find(headwater, &topic, &group).await.ok().flatten();
            let half_way = left.is_some_and(|left| left.state == SubscriptionState::Cancelled);
            let failed = Err(error);
            return if half_way {
                failed.with_context(|| format!("group {group} is cancelled, but not removed; run this again"))
            } else {
                Ok(failed?)
            };
        }
    };
    let mut rows = Rows::new(&["topic", "group", "state", "in_flight_lost"]);
    rows.push(vec![json!(topic.as_str()), json!(group.as_str()), json!("removed"), json!(removed.in_flight)]);
    rows.print(global.output)
}

/// Shows what would go with the group unless a yes was said already, and asks unless only that was wanted.
async fn is_meant(
    global: &Global,
    headwater: &Headwater,
    topic: &TopicName,
    group: &GroupName,
    meant: Meant,
    question: &str,
) -> Result<bool> {
    if meant.yes {
        return Ok(true);
    }
    let status = status_of(headwater, topic, group).await?;
    let mut rows = Rows::new(&[
        "topic",
        "group",
        "dry_run",
        "state",
        "lag",
        "leases",
        "in_flight",
        "retrying",
        "dead_letters",
    ]);
    rows.push(vec![
        json!(topic.as_str()),
        json!(group.as_str()),
        json!(true),
        json!(status.state.as_str()),
        json!(status.lag),
        json!(status.leased),
        json!(status.in_flight),
        json!(status.retrying),
        json!(status.dead_letters),
    ]);
    rows.print(global.output)?;
    if meant.dry_run {
        return Ok(false);
    }
    confirm::ask(question)?;
    Ok(true)
}
