//! Cancelling a group at once, or removing it gracefully. What is lost with it is shown first: it cannot be restored.

use anyhow::{Context, Result};
use headwater::{Headwater, SubscriptionState};
use serde_json::json;

use super::change;
use crate::args::{CancelArgs, Confirmation, Global, GroupArgs, RemoveArgs};
use crate::confirm;
use crate::output::Rows;

pub(super) async fn cancel(global: &Global, headwater: &Headwater, args: &CancelArgs) -> Result<()> {
    let GroupArgs { topic, group } = &args.of;
    let question = format!("cancel group {group} on topic {topic}? Its leases are lost at once");
    if !is_confirmed(global, headwater, &args.of, args.confirmation, &question).await? {
        return Ok(());
    }
    headwater.groups(topic).cancel(group).await?;
    change::print_state(global, &args.of, SubscriptionState::Cancelled)
}

pub(super) async fn remove(global: &Global, headwater: &Headwater, args: &RemoveArgs) -> Result<()> {
    let GroupArgs { topic, group } = &args.of;
    let question = format!("remove group {group} on topic {topic} with its dead letters?");
    if !is_confirmed(global, headwater, &args.of, args.confirmation, &question).await? {
        return Ok(());
    }
    let groups = headwater.groups(topic);
    let removed = match groups.remove(group, args.wait).await {
        Ok(removed) => removed,
        Err(error) => {
            let left = groups.get(group).await;
            let half_way = left.is_ok_and(|left| left.status.state == SubscriptionState::Cancelled);
            let failed = Err(error);
            return if half_way {
                failed.with_context(|| format!("group {group} is cancelled but not removed; run this again"))
            } else {
                Ok(failed?)
            };
        }
    };
    let mut rows = Rows::new(&["topic", "group", "state", "in_flight_lost"]);
    rows.push(vec![json!(topic), json!(group), json!("removed"), json!(removed.in_flight)]);
    rows.print(global.output)
}

/// Without `--yes`: shows what would be lost with the group and, unless it is a dry run, asks for confirmation.
async fn is_confirmed(
    global: &Global,
    headwater: &Headwater,
    of: &GroupArgs,
    confirmation: Confirmation,
    question: &str,
) -> Result<bool> {
    if confirmation.yes {
        return Ok(true);
    }
    let status = headwater.groups(&of.topic).get(&of.group).await?.status;
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
        json!(of.topic),
        json!(of.group),
        json!(true),
        json!(status.state.as_str()),
        json!(status.lag),
        json!(status.leased),
        json!(status.in_flight),
        json!(status.retrying),
        json!(status.dead_letters),
    ]);
    rows.print(global.output)?;
    if confirmation.dry_run {
        return Ok(false);
    }
    confirm::ask(question)?;
    Ok(true)
}
