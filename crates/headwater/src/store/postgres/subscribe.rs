//! Subscribing groups.

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::{Json, ToSql};

use super::advance_heads::batch;
use super::time::{count, holdable, millis, stored};
use super::{PostgresStore, policy, topic};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{FLAPPING_WINDOW, GAPS_NOTED_MAX};
use crate::name::{GroupName, TopicName};
use crate::store::Admin;
use crate::subscription::{GroupOrder, NewSubscription, Start, Subscription, SubscriptionId};
use crate::topic::{Topic, TopicId, TopicSettings};

/// Rows per step while the head catches up with a log that no group consumed yet.
const CATCH_UP_ROWS: i32 = 200_000;

pub(super) async fn subscribe(
    store: &PostgresStore,
    name: &TopicName,
    group: &GroupName,
    new: &NewSubscription,
) -> Result<Subscription> {
    let mut topic = match topic::get(store, name).await {
        Err(error) if error.kind() == ErrorKind::NoSuchTopic && store.auto_create => {
            store.create_topic(name, &TopicSettings::default()).await?
        }
        result => result?,
    };
    new.policy.validate_for(&topic.settings)?;
    catch_up(store, topic.topic_id, new.start).await?;
    let (word, number, time) = words(new.start);
    let rows = store
        .connections
        .query(
            &format!("subscribing group {group} to topic {name}"),
            &store.statements.subscribe,
            &[
                &name.as_str(),
                &group.as_str(),
                &word,
                &number,
                &time,
                &millis(FLAPPING_WINDOW),
                &store.clock.injected(),
                &Json(own_settings(new, &topic.settings)),
            ],
        )
        .await?;
    let row = &rows[0];
    let resurrected: bool = stored(row, "resurrected")?;
    if resurrected {
        store.hub.wake(topic.topic_id);
    }
    topic.settings = policy::policy_of(row)?.apply_to(&topic.settings);
    let missed = resurrected.then(|| count(row, "missed")).transpose()?;
    Ok(Subscription { resurrected: missed, ..subscription_of(row, group, topic)? })
}

/// The subscription of a group that is not cancelled.
pub(super) async fn get(store: &PostgresStore, name: &TopicName, group: &GroupName) -> Result<Subscription> {
    let mut topic = topic::get(store, name).await?;
    let doing = format!("reading group {group} of topic {name}");
    let params: [&(dyn ToSql + Sync); 2] = [&topic.topic_id.0, &group.as_str()];
    let rows = store.connections.query(&doing, &store.statements.subscribe_get, &params).await?;
    let Some(row) = rows.first() else {
        return Err(Error::no_such_subscription(name.as_str(), group.as_str()));
    };
    topic.settings = policy::policy_of(row)?.apply_to(&topic.settings);
    subscription_of(row, group, topic)
}

fn subscription_of(row: &Row, group: &GroupName, topic: Topic) -> Result<Subscription> {
    Ok(Subscription {
        subscription_id: SubscriptionId(stored(row, "subscription_id")?),
        group: group.clone(),
        topic,
        lanes: u16::try_from(stored::<_, i32>(row, "lanes")?).expect("lanes fit 16 bits"),
        resurrected: None,
    })
}

/// What a new group has of its own, as `subscribe` in the schema takes it. A group that takes its order from its topic
/// names no lanes: the topic's are read under its lock.
fn own_settings(new: &NewSubscription, topic: &TopicSettings) -> serde_json::Value {
    let limits = &new.backfill;
    let mut own = serde_json::json!(new.policy);
    own["lanes"] = (new.order != GroupOrder::AsTopic).then(|| new.order.lanes_for(topic)).into();
    own["messages_max"] = i64::try_from(limits.messages_max).unwrap_or(i64::MAX).into();
    own["rate_max"] = batch(limits.rate_max).into();
    own["batch_max"] = limits.batch_max.map(batch).into();
    own["target_latency_ms"] = limits.target_latency.map(millis).into();
    own
}

/// A start as the schema's functions take it: a name, a number, a time.
pub(super) fn words(start: Start) -> (&'static str, Option<i64>, Option<Timestamp>) {
    match start {
        Start::Beginning => ("beginning", None, None),
        Start::Now => ("now", None, None),
        Start::Offset(offset) => ("offset", Some(offset.0), None),
        Start::Timestamp(at) => ("timestamp", None, Some(holdable(at))),
        Start::BeginningBounded(count) => ("bounded", Some(i64::try_from(count).unwrap_or(i64::MAX)), None),
    }
}

/// If a start depends on the head, first advances the head in bounded steps to near the end of the log, so that subscribing or
/// seeking holds its lock only briefly.
pub(super) async fn catch_up(store: &PostgresStore, topic: TopicId, start: Start) -> Result<()> {
    if matches!(start, Start::Beginning | Start::Offset(_)) {
        return Ok(());
    }
    let mut before = -1;
    loop {
        let rows = store
            .connections
            .query(
                "advancing the head",
                &store.statements.maintenance_advance,
                &[&topic.0, &CATCH_UP_ROWS, &GAPS_NOTED_MAX],
            )
            .await?;
        let head: i64 = stored(&rows[0], "head")?;
        if head == before {
            return Ok(());
        }
        before = head;
    }
}
