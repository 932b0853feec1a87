//! Subscribe: one group on one topic, and how far the groups are.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::fault::Attempt;
use super::work::Work;
use super::{OFFSET_MAX, decode, offset_of, row_key, topic, tracking};
use crate::error::Error;
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::subscription::{Start, Subscription, SubscriptionId, SubscriptionStatus};
use crate::topic::{Ordering, Semantics, Topic, TopicId};

/// Subscribes a group; one that exists keeps its place.
///
/// `Start::Now` is exact because this runs in a write transaction: whatever committed before it is at or below
/// `last_offset`, and whatever commits after it gets a higher offset.
pub(super) fn subscribe(
    work: &mut Work<'_>,
    name: &TopicName,
    group: &GroupName,
    start: Start,
) -> Attempt<Subscription> {
    let connection = work.connection;
    let topic = topic::get(connection, name)?;
    let found: Option<(i32, u16)> = connection
        .prepare_cached(super::sql!("subscribe/find.sql"))?
        .query_row(params![topic.topic_id.0, group.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if let Some((subscription_id, lanes)) = found {
        let subscription_id = SubscriptionId(subscription_id);
        return Ok(Subscription { subscription_id, group: group.clone(), topic, lanes });
    }
    if topic.settings.semantics == Semantics::Queue {
        check_only_group(connection, &topic)?;
    }
    let next = first_offset(connection, topic.topic_id, start)?;
    let lanes = if topic.settings.ordering == Ordering::Key { topic.settings.lanes } else { 0 };
    connection.prepare_cached(super::sql!("subscribe/insert.sql"))?.execute(params![
        topic.topic_id.0,
        group.as_str(),
        lanes,
        next,
        work.now_ms()
    ])?;
    let subscription_id = i32::try_from(connection.last_insert_rowid())
        .map_err(|_| Error::invalid("group", "this store has had 2147483647 subscriptions"))?;
    let mut cursor = connection.prepare_cached(super::sql!("subscribe/cursor.sql"))?;
    for lane in 0..lanes.max(1) {
        cursor.execute(params![subscription_id, lane, next])?;
    }
    tracking::begin_accounting(work, subscription_id)?;
    Ok(Subscription { subscription_id: SubscriptionId(subscription_id), group: group.clone(), topic, lanes })
}

fn check_only_group(connection: &Connection, topic: &Topic) -> Attempt<()> {
    let other: Option<String> = connection
        .prepare_cached(super::sql!("subscribe/other.sql"))?
        .query_row([topic.topic_id.0], |row| row.get(0))
        .optional()?;
    let Some(other) = other else { return Ok(()) };
    let rule = format!(
        "topic {} is a queue and its group is {other}; a second group would compete for its messages: create the \
         topic as pub_sub for fan-out",
        topic.name
    );
    Err(Error::invalid("group", rule).into())
}

fn first_offset(connection: &Connection, topic: TopicId, start: Start) -> Attempt<i64> {
    let (lowest, last): (Option<i64>, i64) = connection
        .prepare_cached(super::sql!("subscribe/bounds.sql"))?
        .query_row([topic.0], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let lowest = lowest.unwrap_or(last + 1);
    Ok(match start {
        Start::Beginning => lowest,
        Start::Now => last + 1,
        Start::Offset(Offset(offset)) if offset > OFFSET_MAX => {
            return Err(
                Error::invalid("start offset", format!("{offset}, at most {OFFSET_MAX} is allowed")).into()
            );
        }
        Start::Offset(Offset(offset)) => offset.max(1),
        Start::Timestamp(at) => first_at(connection, topic, lowest, last, at)?,
        Start::BeginningBounded(count) => {
            let count = i64::try_from(count).unwrap_or(OFFSET_MAX);
            lowest.max(last.saturating_sub(count) + 1)
        }
    })
}

/// The first offset stored at or after a time, else the one after the last. A binary search: one writer at a time
/// stamps messages as it appends them, so times rise with offsets as long as the clock does.
fn first_at(connection: &Connection, topic: TopicId, lowest: i64, last: i64, at: Timestamp) -> Attempt<i64> {
    let mut look = connection.prepare_cached(super::sql!("subscribe/time_at.sql"))?;
    // Everything below `low` is earlier; `high` and everything above is not, or is past the end.
    let (mut low, mut high) = (lowest, last + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        let found: Option<(i64, i64)> = look
            .query_row([row_key(topic, middle), row_key(topic, high - 1)], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?;
        match found {
            Some((key, created_at_ms)) if created_at_ms < at.as_millisecond() => low = offset_of(key) + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// The subscriptions of a topic, by group.
pub(super) fn list(
    connection: &Connection,
    name: &TopicName,
    now_ms: i64,
) -> Attempt<Vec<SubscriptionStatus>> {
    let topic = topic::get(connection, name)?;
    let mut statement = connection.prepare_cached(super::sql!("subscription_list.sql"))?;
    Ok(decode::all(&mut statement, params![topic.topic_id.0, now_ms], |row| {
        let next: i64 = row.get(3)?;
        let lowest: [Option<i64>; 2] = [row.get(4)?, row.get(5)?];
        let floor = lowest.into_iter().flatten().fold(next, i64::min) - 1;
        let group = GroupName::new(row.get::<_, String>(2)?).map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(2, rusqlite::types::Type::Text, Box::new(error))
        })?;
        Ok(SubscriptionStatus {
            subscription_id: SubscriptionId(row.get(0)?),
            topic_id: TopicId(row.get(1)?),
            group,
            next: Offset(next),
            floor: Offset(floor),
            leased: row.get::<_, u32>(6)?.into(),
            waiting: row.get::<_, u32>(7)?.into(),
            dead_letters: row.get::<_, u32>(8)?.into(),
            reassigned: row.get::<_, u32>(9)?.into(),
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
    })?)
}
