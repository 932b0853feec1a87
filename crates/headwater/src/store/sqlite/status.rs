//! The status of a topic's subscriptions. Every number comes from an index or from what is outstanding: the log is
//! not read, except for the message that has waited longest.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::fault::Attempt;
use super::group::{self, Position};
use super::progress::TopicRange;
use super::{decode, log, millis, stuck, topic};
use crate::groups::GroupSelection;
use crate::limits::{FLAPPING_WINDOW, PARKED_PER_LANE_MAX};
use crate::message::Offset;
use crate::name::{GroupName, TopicName};
use crate::store::SurveyedGroup;
use crate::subscription::{
    Activity, LATELY, STUCK_AFTER, SubscriptionId, SubscriptionState, SubscriptionStatus,
};
use crate::topic::Topic;

/// The subscriptions of a topic, by group.
pub(super) fn list(
    connection: &Connection,
    name: &TopicName,
    now_ms: i64,
) -> Attempt<Vec<SubscriptionStatus>> {
    of_topic(connection, &topic::get(connection, name)?, now_ms, None)
}

/// The same of a known topic; counts at most this many dead letters of each.
pub(super) fn of_topic(
    connection: &Connection,
    topic: &Topic,
    now_ms: i64,
    dead_letters_max: Option<i64>,
) -> Attempt<Vec<SubscriptionStatus>> {
    let mut statement = connection.prepare_cached(super::sql!(subscribe.of_topic))?;
    let ids: Vec<i32> = decode::all(&mut statement, [topic.topic_id.0], |row| row.get(0))?;
    of_ids(connection, topic, &ids, now_ms, dead_letters_max)
}

/// The subscriptions of a selection, of all topics, by topic and group.
pub(super) fn find(
    connection: &Connection,
    selection: &GroupSelection,
    limit: u32,
    now_ms: i64,
) -> Attempt<Vec<SurveyedGroup>> {
    let GroupSelection { topic, group, state, contains, after } = selection;
    let after = after.as_ref();
    let mut statement = connection.prepare_cached(super::sql!(subscribe.find))?;
    let parameters = params![
        topic,
        group,
        state.map(SubscriptionState::as_str),
        contains,
        after.map(|place| &place.topic),
        after.map(|place| &place.group),
        after.map(|place| place.subscription_id.0),
        limit
    ];
    let found: Vec<(i32, String)> =
        decode::all(&mut statement, parameters, |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut all = Vec::with_capacity(found.len());
    for of_topic in found.chunk_by(|one, next| one.1 == next.1) {
        let topic = topic::get(connection, &TopicName::new(&*of_topic[0].1)?)?;
        let ids: Vec<i32> = of_topic.iter().map(|(id, _)| *id).collect();
        let statuses = of_ids(connection, &topic, &ids, now_ms, None)?;
        all.extend(statuses.into_iter().map(|status| SurveyedGroup { topic: topic.name.clone(), status }));
    }
    Ok(all)
}

/// Subscriptions of a topic by their ids, in the order of these.
fn of_ids(
    connection: &Connection,
    topic: &Topic,
    ids: &[i32],
    now_ms: i64,
    dead_letters_max: Option<i64>,
) -> Attempt<Vec<SubscriptionStatus>> {
    let head = TopicRange::load(connection, topic.topic_id)?.head;
    let mut statement = connection.prepare_cached(super::sql!(subscribe.list))?;
    let recent_from_ms = now_ms.saturating_sub(millis(LATELY));
    let ids = serde_json::to_string(ids).expect("numbers are always JSON");
    let parameters = params![ids, recent_from_ms, dead_letters_max.unwrap_or(-1)];
    let rows = decode::all(&mut statement, parameters, |row| Listed::read(row, topic, now_ms))?;
    let mut all = Vec::with_capacity(rows.len());
    for Listed { mut status, restarts_floor } in rows {
        let lanes = status.lanes;
        let position = group::position(connection, status.subscription_id.0, now_ms)?;
        fill_progress(&mut status, &position, head);
        if restarts_floor.is_none_or(|floor| position.floor > floor) {
            status.restarts = 0;
        }
        if lanes > 0 {
            let mut full = connection.prepare_cached(super::sql!(subscribe.lanes_full))?;
            let parameters = params![status.subscription_id.0, PARKED_PER_LANE_MAX];
            status.lanes_full = full.query_row(parameters, |row| row.get(0))?;
        }
        if status.lag > 0 {
            let oldest = log::first_in(connection, topic.topic_id, position.floor + 1, head)?;
            status.oldest_pending = oldest.and_then(|(_, at_ms)| Timestamp::from_millisecond(at_ms).ok());
            if oldest.is_some_and(|(_, at_ms)| at_ms < now_ms.saturating_sub(millis(STUCK_AFTER))) {
                status.stuck = stuck(connection, &status, lanes, now_ms)?;
            }
        }
        let living_from_ms = now_ms.saturating_sub(millis(status.heartbeat_timeout));
        (status.activity, status.processes) = activity(connection, status.subscription_id, living_from_ms)?;
        all.push(status);
    }
    Ok(all)
}

/// Waiting ranges that are read to count what is stuck.
const STUCK_RANGES_MAX: u32 = 1_000;

/// How many of its pending offsets are old.
fn stuck(connection: &Connection, status: &SubscriptionStatus, lanes: u16, now_ms: i64) -> Attempt<u64> {
    let until = stuck::last_older(connection, status.topic_id, STUCK_AFTER, now_ms)?;
    if lanes > 0 {
        return Ok(u64::try_from(until - status.floor.0).unwrap_or(0));
    }
    let mut statement = connection.prepare_cached(super::sql!(subscribe.pending_older))?;
    let parameters = params![status.subscription_id.0, until, STUCK_RANGES_MAX];
    let handed_out = statement.query_row(parameters, |row| decode::count(row, 0))?;
    Ok(handed_out + u64::try_from(until - status.next.0 + 1).unwrap_or(0))
}

/// A subscription's own row, and what is needed to fill in the rest.
struct Listed {
    status: SubscriptionStatus,
    restarts_floor: Option<i64>,
}

impl Listed {
    fn read(row: &Row<'_>, topic: &Topic, now_ms: i64) -> rusqlite::Result<Self> {
        let heartbeat_at_ms: Option<i64> = row.get(5)?;
        let restarts_since_ms: Option<i64> = row.get(11)?;
        let counted_from_ms = now_ms.saturating_sub(millis(FLAPPING_WINDOW));
        let counted = restarts_since_ms.is_some_and(|since_ms| since_ms >= counted_from_ms);
        let status = SubscriptionStatus {
            subscription_id: SubscriptionId(row.get(0)?),
            topic_id: topic.topic_id,
            group: decode::parsed(row, 1, |name| GroupName::new(name))?,
            lanes: row.get(2)?,
            state: decode::parsed(row, 3, SubscriptionState::parse)?,
            state_since: decode::timestamp(row, 4)?,
            state_reason: row.get(15)?,
            heartbeat_at: decode::optional_timestamp(row, 5)?,
            heartbeat_age: heartbeat_at_ms.map(|at_ms| super::until(now_ms, at_ms)),
            heartbeat_timeout: decode::optional_duration(row, 16)?
                .unwrap_or(topic.settings.heartbeat_timeout),
            next: Offset(0),
            floor: Offset(0),
            lag: 0,
            oldest_pending: None,
            leased: 0,
            waiting: 0,
            in_flight: 0,
            retrying: 0,
            lanes_full: 0,
            stuck: 0,
            dead_letters: decode::count(row, 13)?,
            buried_lately: decode::count(row, 14)?,
            reassigned: decode::count(row, 6)?,
            missed: group::read_missed(row, 7)?,
            activity: Activity::default(),
            processes: 0,
            restarts: if counted { row.get(10)? } else { 0 },
        };
        Ok(Listed { status, restarts_floor: row.get(12)? })
    }
}

fn fill_progress(status: &mut SubscriptionStatus, position: &Position, head: i64) {
    let not_handed_out = u64::try_from(head - position.next + 1).unwrap_or_default();
    status.next = Offset(position.next);
    status.floor = Offset(position.floor);
    status.lag = match status.lanes {
        0 => not_handed_out + position.outstanding,
        _ => u64::try_from(head - position.floor).unwrap_or_default(),
    };
    status.leased = position.leased;
    status.waiting = position.waiting;
    status.in_flight = position.in_flight;
    status.retrying = position.retrying;
}

fn activity(
    connection: &Connection,
    subscription: SubscriptionId,
    living_from_ms: i64,
) -> Attempt<(Activity, u32)> {
    let mut statement = connection.prepare_cached(super::sql!(subscribe.activity))?;
    Ok(statement.query_row(params![subscription.0, living_from_ms], |row| {
        let mean: f64 = row.get(4)?;
        let activity = Activity {
            processed: decode::count(row, 0)?,
            failed: decode::count(row, 1)?,
            filtered: decode::count(row, 2)?,
            rate: row.get(3)?,
            handling_mean: Duration::from_secs_f64((mean / 1e6).clamp(0.0, 1e9)),
            handling_p95: Duration::from_micros(decode::count(row, 5)?),
        };
        Ok((activity, row.get(6)?))
    })?)
}
