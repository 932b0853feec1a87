//! Removing a group in order: no more hand-outs, what is in flight finishes, and only then it goes.

use std::time::Duration;

use anyhow::{Result, bail};
use headwater::{ErrorKind, GroupName, Headwater, Job, SubscriptionState, TopicName, Transition};
use serde_json::json;
use tokio::time::Instant;

use super::{names, status_of};
use crate::args::{Global, RemoveArgs};
use crate::output::Rows;

/// How often it is looked whether what was in flight has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the accounting may take to be released, before it is left to another call.
const RELEASE_WITHIN: Duration = Duration::from_secs(600);

pub(super) async fn run(global: &Global, headwater: &Headwater, args: &RemoveArgs) -> Result<()> {
    let (topic, group) = names(&args.of)?;
    let status = status_of(headwater, &topic, &group).await?;
    if status.state == SubscriptionState::Active {
        headwater.store().shift(&topic, &group, Transition::Pause).await?;
    }
    let left = finished(headwater, &topic, &group, args.wait).await?;
    if status.state != SubscriptionState::Cancelled {
        headwater.store().shift(&topic, &group, Transition::Cancel).await?;
    }
    delete(headwater, &topic, &group).await?;
    let mut rows = Rows::new(&["topic", "group", "state", "in_flight_lost"]);
    rows.push(vec![json!(topic.as_str()), json!(group.as_str()), json!("removed"), json!(left)]);
    rows.print(global.output)
}

/// Waits until nothing is in flight, or for so long; what was left then.
async fn finished(
    headwater: &Headwater,
    topic: &TopicName,
    group: &GroupName,
    wait: Duration,
) -> Result<u64> {
    let deadline = Instant::now() + wait;
    loop {
        let in_flight = status_of(headwater, topic, group).await?.in_flight;
        if in_flight == 0 || Instant::now() >= deadline {
            return Ok(in_flight);
        }
        tokio::time::sleep_until(deadline.min(Instant::now() + LOOK_EVERY)).await;
    }
}

/// Deletes it once its accounting is released, doing the releasing here if nobody else does.
async fn delete(headwater: &Headwater, topic: &TopicName, group: &GroupName) -> Result<()> {
    let deadline = Instant::now() + RELEASE_WITHIN;
    loop {
        let refused = match headwater.store().remove(topic, group).await {
            Err(error) if error.kind() == ErrorKind::InvalidTransition => error,
            done => return Ok(done?),
        };
        // Whoever subscribed again meanwhile made a new one, and that is not the one to be removed.
        let is_new = status_of(headwater, topic, group).await?.state != SubscriptionState::Cancelled;
        if is_new || Instant::now() >= deadline {
            bail!("group {group} was cancelled, but not removed; run this again: {refused}");
        }
        let runs = headwater.maintenance().run_once(&[Job::Tracking]).await?;
        if let Some(error) = runs.into_iter().find_map(|run| run.error) {
            bail!("group {group} was cancelled, but not removed; run this again: {error}");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
