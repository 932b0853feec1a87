//! Subscribe: one group on one topic, new or returning.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::fault::Attempt;
use super::group::{self, Group};
use super::progress::TopicRange;
use super::work::Work;
use super::{OFFSET_MAX, log, millis, policy, resurrect, topic, tracking};
use crate::error::Error;
use crate::limits::FLAPPING_WINDOW;
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::subscription::{NewSubscription, Start, Subscription, SubscriptionId, SubscriptionState};
use crate::topic::{Semantics, Topic, TopicId};

/// Subscribes a group; an existing one keeps its cursor.
///
/// `Start::Now` is exact because this runs in a write transaction: whatever committed before it is at or below
/// `last_offset`, and whatever commits after it gets a higher offset.
pub(super) fn subscribe(
    work: &mut Work<'_>,
    name: &TopicName,
    group: &GroupName,
    new: &NewSubscription,
) -> Attempt<Subscription> {
    let topic = topic::get(work.connection, name)?;
    new.policy.validate_for(&topic.settings)?;
    match group::find(work.connection, topic.topic_id, group)? {
        // A cancelled subscription is not used again.
        Some(found) if found.state != SubscriptionState::Cancelled => return_to(work, topic, group, &found),
        _ => begin(work, topic, group, new),
    }
}

/// The subscription of a group that is not cancelled.
pub(super) fn get(connection: &Connection, name: &TopicName, group: &GroupName) -> Attempt<Subscription> {
    let (topic, found) = group::get(connection, name, group)?;
    if found.state == SubscriptionState::Cancelled {
        return Err(Error::no_such_subscription(name.as_str(), group.as_str()).into());
    }
    with_policy(connection, topic, group, &found)
}

/// Registers a process of an existing group. A dead group is resurrected; a group that registers repeatedly without
/// progress is detected by its restarts.
fn return_to(work: &mut Work<'_>, topic: Topic, group: &GroupName, found: &Group) -> Attempt<Subscription> {
    let (subscription_id, now_ms) = (found.subscription_id, work.now_ms());
    let is_dead = found.state == SubscriptionState::Dead;
    if is_dead {
        resurrect::revive(work, topic.topic_id, subscription_id, None)?;
    } else {
        let floor = group::position(work.connection, subscription_id, now_ms)?.floor;
        let head = TopicRange::load(work.connection, topic.topic_id)?.head;
        let counted_from_ms = now_ms.saturating_sub(millis(FLAPPING_WINDOW));
        work.connection.prepare_cached(super::sql!(subscribe.restart))?.execute(params![
            subscription_id,
            now_ms,
            floor,
            counted_from_ms,
            head
        ])?;
    }
    let resurrected = is_dead.then_some(found.missed.count);
    Ok(Subscription { resurrected, ..with_policy(work.connection, topic, group, found)? })
}

/// A subscription whose settings are its topic's, with its own policy applied.
fn with_policy(
    connection: &Connection,
    topic: Topic,
    group: &GroupName,
    found: &Group,
) -> Attempt<Subscription> {
    let policy = policy::of(connection, found.subscription_id)?;
    let topic = Topic { settings: policy.apply_to(&topic.settings), ..topic };
    let (subscription_id, lanes) = (SubscriptionId(found.subscription_id), found.lanes);
    Ok(Subscription { subscription_id, group: group.clone(), topic, lanes, resurrected: None })
}

/// Creates a new subscription.
fn begin(
    work: &mut Work<'_>,
    topic: Topic,
    group: &GroupName,
    new: &NewSubscription,
) -> Attempt<Subscription> {
    let connection = work.connection;
    if topic.settings.semantics == Semantics::Queue {
        check_only_group(connection, &topic)?;
    }
    let next = start_offset(connection, topic.topic_id, new.start)?;
    let lanes = new.order.lanes_for(&topic.settings);
    connection.prepare_cached(super::sql!(subscribe.insert))?.execute(params![
        topic.topic_id.0,
        group.as_str(),
        lanes,
        next,
        work.now_ms()
    ])?;
    let subscription_id = i32::try_from(connection.last_insert_rowid())
        .map_err(|_| Error::invalid("group", "this store has had 2147483647 subscriptions"))?;
    let mut cursor = connection.prepare_cached(super::sql!(subscribe.cursor))?;
    for lane in 0..lanes.max(1) {
        cursor.execute(params![subscription_id, lane, next])?;
    }
    policy::store(work.connection, subscription_id, &new.policy)?;
    tracking::start_counting(work, subscription_id, &new.backfill)?;
    let topic = Topic { settings: new.policy.apply_to(&topic.settings).as_stored(), ..topic };
    let subscription_id = SubscriptionId(subscription_id);
    Ok(Subscription { subscription_id, group: group.clone(), topic, lanes, resurrected: None })
}

fn check_only_group(connection: &Connection, topic: &Topic) -> Attempt<()> {
    let other: Option<String> = connection
        .prepare_cached(super::sql!(subscribe.others))?
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

/// The offset of a start in the log.
pub(super) fn start_offset(connection: &Connection, topic: TopicId, start: Start) -> Attempt<i64> {
    // Reads the log before its bounds: a message removed in between is below the first offset.
    let stored = log::first_in(connection, topic, 0, OFFSET_MAX)?;
    let TopicRange { first, head: last, .. } = TopicRange::load(connection, topic)?;
    let lowest = stored.map_or(last + 1, |(offset, _)| offset).max(first);
    Ok(match start {
        Start::Beginning => lowest,
        Start::Now => last + 1,
        Start::Offset(Offset(offset)) if offset > last + 1 => {
            let rule = format!(
                "{offset} is beyond the end, {last} is the last offset taken: start at now for what comes next"
            );
            return Err(Error::invalid("start offset", rule).into());
        }
        Start::Offset(Offset(offset)) => offset.max(first),
        Start::Timestamp(at) => log::first_since(connection, topic, lowest, last, at.as_millisecond())?,
        Start::BeginningBounded(count) => {
            let count = i64::try_from(count).unwrap_or(OFFSET_MAX);
            lowest.max(last.saturating_sub(count) + 1)
        }
    })
}

/// The first offset stored at or after a time, else the one after the last.
pub(super) fn start_at(connection: &Connection, topic: TopicId, at: Timestamp) -> Attempt<i64> {
    start_offset(connection, topic, Start::Timestamp(at))
}
