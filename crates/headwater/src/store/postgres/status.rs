//! The progress and health of subscriptions.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::time::{millis, stored};
use super::{PostgresStore, topic};
use crate::error::Result;
use crate::limits::{FLAPPING_WINDOW, PARKED_PER_LANE_MAX};
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::subscription::{
    Activity, LATELY, MissedMessages, STUCK_AFTER, SubscriptionId, SubscriptionState, SubscriptionStatus,
};
use crate::topic::TopicId;

pub(super) async fn list(store: &PostgresStore, name: &TopicName) -> Result<Vec<SubscriptionStatus>> {
    let topic = topic::get(store, name).await?;
    let rows = store
        .connections
        .query(
            &format!("listing subscriptions of topic {name}"),
            &store.statements.subscribe_list,
            &Listing { topic: Some(topic.topic_id.0), ..Listing::new(store) }.parameters(),
        )
        .await?;
    rows.iter().map(status_of).collect()
}

/// The parameters of `subscribe.list`.
pub(super) struct Listing {
    /// The topic, or `None` for all.
    pub(super) topic: Option<i32>,
    /// Dead letters counted at most, and subscriptions listed at most; `None` for all.
    pub(super) dead_letters_max: Option<i64>,
    pub(super) groups_max: Option<i64>,
    pub(super) now: Option<Timestamp>,
    pub(super) flapping_ms: i64,
    pub(super) stuck_ms: i64,
    pub(super) lately_ms: i64,
}

impl Listing {
    pub(super) fn new(store: &PostgresStore) -> Self {
        Listing {
            topic: None,
            dead_letters_max: None,
            groups_max: None,
            now: store.clock.injected(),
            flapping_ms: millis(FLAPPING_WINDOW),
            stuck_ms: millis(STUCK_AFTER),
            lately_ms: millis(LATELY),
        }
    }

    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 8] {
        [
            &self.topic,
            &self.flapping_ms,
            &self.now,
            &PARKED_PER_LANE_MAX,
            &self.stuck_ms,
            &self.lately_ms,
            &self.dead_letters_max,
            &self.groups_max,
        ]
    }
}

pub(super) fn status_of(row: &Row) -> Result<SubscriptionStatus> {
    let count = |column: &str| stored(row, column).map(counted);
    let age_ms: Option<i64> = stored(row, "heartbeat_age_ms")?;
    Ok(SubscriptionStatus {
        subscription_id: SubscriptionId(stored(row, "subscription_id")?),
        topic_id: TopicId(stored(row, "topic_id")?),
        group: GroupName::new(stored::<_, String>(row, "group_name")?)?,
        lanes: u16::try_from(stored::<_, i32>(row, "lanes")?).expect("the schema checks lanes"),
        state: SubscriptionState::parse(stored(row, "state")?)?,
        state_since: stored(row, "state_at")?,
        state_reason: stored(row, "state_reason")?,
        heartbeat_at: stored(row, "heartbeat_at")?,
        heartbeat_age: age_ms.map(|ms| Duration::from_millis(counted(ms))),
        heartbeat_timeout: Duration::from_millis(count("heartbeat_timeout_ms")?),
        next: Offset(stored(row, "next_offset")?),
        floor: Offset(stored(row, "floor")?),
        lag: count("lag")?,
        oldest_pending: stored(row, "oldest_pending")?,
        leased: count("leased")?,
        waiting: count("waiting")?,
        in_flight: count("in_flight")?,
        retrying: count("retrying")?,
        lanes_full: u32::try_from(count("lanes_full")?).unwrap_or(u32::MAX),
        stuck: count("stuck")?,
        dead_letters: count("dead_letters")?,
        buried_lately: count("buried_lately")?,
        reassigned: count("reassigned")?,
        missed: missed_of(row)?,
        activity: Activity {
            processed: count("processed")?,
            failed: count("failed")?,
            filtered: count("filtered")?,
            rate: stored(row, "rate")?,
            handling_mean: Duration::from_micros(count("handling_mean_us")?),
            handling_p95: Duration::from_micros(count("handling_p95_us")?),
        },
        processes: u32::try_from(count("processes")?).unwrap_or(u32::MAX),
        restarts: u32::try_from(stored::<_, i32>(row, "restarts")?).expect("a count is not negative"),
    })
}

pub(super) fn missed_of(row: &Row) -> Result<MissedMessages> {
    let (first, last): (Option<i64>, Option<i64>) =
        (stored(row, "missed_first")?, stored(row, "missed_last")?);
    Ok(MissedMessages {
        count: counted(stored(row, "missed")?),
        range: first.zip(last).map(|(first, last)| (Offset(first), Offset(last))),
    })
}

pub(super) fn counted(number: i64) -> u64 {
    u64::try_from(number).expect("a count is not negative")
}
