//! A group's subscription for operators and maintenance: found by name, with its state and progress.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::fault::Attempt;
use super::work::Work;
use super::{decode, topic};
use crate::error::Error;
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::subscription::{MissedMessages, SubscriptionState, refused_cancelled};
use crate::topic::{Topic, TopicId};

/// A subscription as found by its group's name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) subscription_id: i32,
    pub(super) lanes: u16,
    pub(super) state: SubscriptionState,
    pub(super) missed: MissedMessages,
}

/// The subscription of a group: the living one, else the newest cancelled one.
pub(super) fn find(connection: &Connection, topic: TopicId, group: &GroupName) -> Attempt<Option<Group>> {
    let found = connection
        .prepare_cached(super::sql!(subscribe.group))?
        .query_row(params![topic.0, group.as_str()], |row| {
            Ok(Group {
                subscription_id: row.get(0)?,
                lanes: row.get(1)?,
                state: decode::parsed(row, 2, SubscriptionState::parse)?,
                missed: read_missed(row, 3)?,
            })
        })
        .optional()?;
    Ok(found)
}

/// The same with its topic; `NoSuchTopic` or `NoSuchSubscription` if it does not exist.
pub(super) fn get(connection: &Connection, name: &TopicName, group: &GroupName) -> Attempt<(Topic, Group)> {
    let topic = topic::get(connection, name)?;
    match find(connection, topic.topic_id, group)? {
        Some(found) => Ok((topic, found)),
        None => Err(Error::no_such_subscription(name.as_str(), group.as_str()).into()),
    }
}

/// The same, but refuses a cancelled subscription: that state is final.
pub(super) fn get_alive(
    connection: &Connection,
    name: &TopicName,
    group: &GroupName,
    act: &str,
) -> Attempt<(Topic, Group)> {
    let (topic, found) = get(connection, name, group)?;
    if found.state == SubscriptionState::Cancelled {
        return Err(refused_cancelled(act, name.as_str(), group.as_str()).into());
    }
    Ok((topic, found))
}

/// The number of a subscription's leases that have not expired.
pub(super) fn leases(connection: &Connection, subscription_id: i32, now_ms: i64) -> Attempt<u64> {
    let mut statement = connection.prepare_cached(super::sql!(seek.leases))?;
    Ok(statement.query_row(params![subscription_id, now_ms], |row| decode::count(row, 0))?)
}

/// Three columns: the number of missed messages, the first and the last.
pub(super) fn read_missed(row: &Row<'_>, at: usize) -> rusqlite::Result<MissedMessages> {
    let range: (Option<i64>, Option<i64>) = (row.get(at + 1)?, row.get(at + 2)?);
    Ok(MissedMessages {
        count: decode::count(row, at)?,
        range: range.0.zip(range.1).map(|(first, last)| (Offset(first), Offset(last))),
    })
}

/// The progress of a subscription.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// The first offset never handed out, of the slowest lane.
    pub(super) next: i64,
    /// Everything at or below it is done.
    pub(super) floor: i64,
    /// Offsets handed out and not done.
    pub(super) outstanding: u64,
    pub(super) leased: u64,
    pub(super) waiting: u64,
    pub(super) in_flight: u64,
    pub(super) retrying: u64,
}

/// The progress of a subscription: its cursors, and what is outstanding below them.
pub(super) fn position(connection: &Connection, subscription_id: i32, now_ms: i64) -> Attempt<Position> {
    let next: i64 = connection
        .prepare_cached(super::sql!(subscribe.next))?
        .query_row([subscription_id], |row| row.get(0))?;
    let mut statement = connection.prepare_cached(super::sql!(subscribe.held))?;
    Ok(statement.query_row(params![subscription_id, now_ms], |row| {
        let lowest: i64 = row.get(0)?;
        Ok(Position {
            next,
            floor: lowest.min(next) - 1,
            outstanding: decode::count(row, 1)?,
            leased: decode::count(row, 2)?,
            waiting: decode::count(row, 3)?,
            in_flight: decode::count(row, 4)?,
            retrying: decode::count(row, 5)?,
        })
    })?)
}

/// Applies the rule for messages published while no subscription counts; to be called when the counting subscriptions
/// change.
pub(super) fn counting_changed(work: &Work<'_>, topic: TopicId) -> Attempt<()> {
    work.connection.prepare_cached(super::sql!(state.zero))?.execute([topic.0])?;
    Ok(())
}
