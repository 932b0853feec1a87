//! The progress and health of subscriptions.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::time::{millis, stored};
use super::{PostgresStore, topic};
use crate::error::Result;
use crate::groups::GroupSelection;
use crate::limits::{FLAPPING_WINDOW, PARKED_PER_LANE_MAX};
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::store::SurveyedGroup;
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
            &Listing { topic: Some(topic.topic_id.0), cancelled: true, ..Listing::new(store) }.parameters(),
        )
        .await?;
    rows.iter().map(status_of).collect()
}

/// The subscriptions of a selection, of all topics, and the database's time.
pub(super) async fn find(
    store: &PostgresStore,
    selection: &GroupSelection,
    limit: u32,
) -> Result<(Timestamp, Vec<SurveyedGroup>)> {
    let listing = Listing { groups_max: Some(limit.into()), ..Listing::of(store, selection.clone()) };
    let rows = store
        .connections
        .query("listing subscriptions", &store.statements.subscribe_list, &listing.parameters())
        .await?;
    let now = rows.first().map(|row| stored(row, "now")).transpose()?;
    let found = rows.iter().map(|row| {
        let topic = TopicName::new(stored::<_, String>(row, "topic")?)?;
        Ok(SurveyedGroup { topic, status: status_of(row)? })
    });
    Ok((now.unwrap_or_else(Timestamp::now), found.collect::<Result<_>>()?))
}

/// The parameters of `subscribe.list`.
pub(super) struct Listing {
    /// The topic, or `None` for all.
    pub(super) topic: Option<i32>,
    /// Dead letters counted at most, and subscriptions listed at most; `None` for all.
    pub(super) dead_letters_max: Option<i64>,
    pub(super) groups_max: Option<i64>,
    /// Whether cancelled ones too.
    pub(super) cancelled: bool,
    pub(super) now: Option<Timestamp>,
    pub(super) flapping_ms: i64,
    pub(super) stuck_ms: i64,
    pub(super) lately_ms: i64,
    pub(super) selection: GroupSelection,
    pub(super) state: Option<&'static str>,
    /// Topic, group and subscription to list after.
    pub(super) after: (Option<String>, Option<String>, Option<i32>),
}

impl Listing {
    /// All groups of all topics that are not cancelled.
    pub(super) fn new(store: &PostgresStore) -> Self {
        Listing {
            topic: None,
            dead_letters_max: None,
            groups_max: None,
            cancelled: false,
            now: store.clock.injected(),
            flapping_ms: millis(FLAPPING_WINDOW),
            stuck_ms: millis(STUCK_AFTER),
            lately_ms: millis(LATELY),
            selection: GroupSelection::default(),
            state: None,
            after: (None, None, None),
        }
    }

    /// Those of a selection.
    fn of(store: &PostgresStore, mut selection: GroupSelection) -> Self {
        let after = selection.after.take().map_or((None, None, None), |place| {
            (Some(place.topic), Some(place.group), Some(place.subscription_id.0))
        });
        let state = selection.state.map(SubscriptionState::as_str);
        Listing { cancelled: true, selection, state, after, ..Listing::new(store) }
    }

    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 16] {
        [
            &self.topic,
            &self.flapping_ms,
            &self.now,
            &PARKED_PER_LANE_MAX,
            &self.stuck_ms,
            &self.lately_ms,
            &self.dead_letters_max,
            &self.groups_max,
            &self.cancelled,
            &self.selection.topic,
            &self.selection.group,
            &self.state,
            &self.selection.contains,
            &self.after.0,
            &self.after.1,
            &self.after.2,
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
