//! Subscribing groups and listing how far they are.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::time::holdable;
use super::{PostgresStore, topic};
use crate::error::{ErrorKind, Result};
use crate::limits::GAPS_NOTED_MAX;
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::store::Store;
use crate::subscription::{Start, Subscription, SubscriptionId, SubscriptionStatus};
use crate::topic::{TopicId, TopicSettings};

/// Rows per step while the head catches up with a log that nobody consumed yet.
const CATCH_UP_ROWS: i32 = 200_000;

pub(super) async fn subscribe(
    store: &PostgresStore,
    name: &TopicName,
    group: &GroupName,
    start: Start,
) -> Result<Subscription> {
    let topic = match topic::get(store, name).await {
        Err(error) if error.kind() == ErrorKind::NoSuchTopic && store.auto_create => {
            store.create_topic(name, &TopicSettings::default()).await?
        }
        result => result?,
    };
    if !matches!(start, Start::Beginning | Start::Offset(_)) {
        catch_up(store, topic.topic_id).await?;
    }
    let (word, number, time) = words(start);
    let rows = store
        .connections
        .query(
            &format!("subscribing group {group} to topic {name}"),
            &store.statements.subscribe,
            &[&name.as_str(), &group.as_str(), &word, &number, &time, &store.clock.injected()],
        )
        .await?;
    let subscription_id: i32 = rows[0].get("subscription_id");
    let rows = store
        .connections
        .query("reading the subscription", &store.statements.subscribe_lanes, &[&subscription_id])
        .await?;
    let lanes: i32 = rows[0].get("lanes");
    Ok(Subscription {
        subscription_id: SubscriptionId(subscription_id),
        group: group.clone(),
        topic,
        lanes: u16::try_from(lanes).expect("lanes fit 16 bits"),
    })
}

fn words(start: Start) -> (&'static str, Option<i64>, Option<Timestamp>) {
    match start {
        Start::Beginning => ("beginning", None, None),
        Start::Now => ("now", None, None),
        Start::Offset(offset) => ("offset", Some(offset.0), None),
        Start::Timestamp(at) => ("timestamp", None, Some(holdable(at))),
        Start::BeginningBounded(count) => ("bounded", Some(i64::try_from(count).unwrap_or(i64::MAX)), None),
    }
}

/// Brings the head near the end of the log in bounded steps, so that subscribing holds its lock only briefly.
async fn catch_up(store: &PostgresStore, topic: TopicId) -> Result<()> {
    let mut before = -1;
    loop {
        let rows = store
            .connections
            .query(
                "advancing the head",
                &store.statements.advance,
                &[&topic.0, &CATCH_UP_ROWS, &GAPS_NOTED_MAX],
            )
            .await?;
        let head: i64 = rows[0].get("head");
        if head == before {
            return Ok(());
        }
        before = head;
    }
}

pub(super) async fn list(store: &PostgresStore, name: &TopicName) -> Result<Vec<SubscriptionStatus>> {
    let topic = topic::get(store, name).await?;
    let rows = store
        .connections
        .query(
            &format!("listing subscriptions of topic {name}"),
            &store.statements.subscription_list,
            &[&topic.topic_id.0, &store.clock.injected()],
        )
        .await?;
    rows.iter().map(status_of).collect()
}

fn status_of(row: &Row) -> Result<SubscriptionStatus> {
    let count = |column: &str| u64::try_from(row.get::<_, i64>(column)).expect("a count is not negative");
    Ok(SubscriptionStatus {
        subscription_id: SubscriptionId(row.get("subscription_id")),
        topic_id: TopicId(row.get("topic_id")),
        group: GroupName::new(row.get::<_, String>("group_name"))?,
        next: Offset(row.get("next_offset")),
        floor: Offset(row.get("floor")),
        leased: count("leased"),
        waiting: count("waiting"),
        dead_letters: count("dead_letters"),
        reassigned: count("reassigned"),
        state: crate::subscription::SubscriptionState::Active,
        state_since: jiff::Timestamp::UNIX_EPOCH,
        heartbeat_at: None,
        heartbeat_age: None,
        heartbeat_timeout: std::time::Duration::from_secs(300),
        lag: 0,
        oldest_pending: None,
        in_flight: 0,
        retrying: 0,
        missed: crate::subscription::MissedMessages::default(),
        activity: crate::subscription::Activity::default(),
        processes: 0,
        restarts: 0,
    })
}
