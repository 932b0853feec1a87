//! The progress of a topic and its subscriptions, from which maintenance decides.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::decode;
use super::fault::Attempt;
use crate::error::Error;
use crate::store::sqlite::ranges::Ranges;
use crate::subscription::SubscriptionState;
use crate::topic::{Semantics, TopicId, Tracking};

/// The part of a topic's state that maintenance uses.
#[derive(Clone, Debug)]
pub(super) struct TopicRange {
    pub(super) topic: TopicId,
    pub(super) name: String,
    pub(super) tracking: Tracking,
    /// The last offset assigned: one transaction writes at a time, so it is the head too.
    pub(super) head: i64,
    /// Everything below was removed.
    pub(super) first: i64,
    pub(super) zero_until: Option<i64>,
    /// While no subscription counts: everything from this offset on was published since.
    pub(super) zero_from: i64,
    pub(super) tracked_until: i64,
    pub(super) change_until: Option<i64>,
    pub(super) message_retention_ms: Option<i64>,
    pub(super) max_retention_ms: Option<i64>,
    pub(super) zero_subscription_retention_ms: i64,
    /// Bits that may be set in its completion records.
    pub(super) bits_used: u64,
    /// How many messages were removed so far.
    pub(super) removed: i64,
}

impl TopicRange {
    pub(super) fn load(connection: &Connection, topic: TopicId) -> Attempt<Self> {
        let found = Self::find(connection, topic)?;
        found.ok_or_else(|| Error::no_such_topic(&format!("number {topic}")).into())
    }

    pub(super) fn find(connection: &Connection, topic: TopicId) -> Attempt<Option<Self>> {
        let mut statement = connection.prepare_cached(super::sql!(topic.topic_range))?;
        Ok(statement.query_row([topic.0], |row| Self::read(topic, row)).optional()?)
    }

    fn read(topic: TopicId, row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(TopicRange {
            topic,
            name: decode::name(row, 0)?,
            tracking: decode::word(row, 1)?,
            head: row.get(2)?,
            first: row.get(3)?,
            zero_until: row.get(4)?,
            zero_from: row.get(5)?,
            tracked_until: row.get(6)?,
            change_until: row.get(7)?,
            message_retention_ms: row.get(8)?,
            max_retention_ms: row.get(9)?,
            zero_subscription_retention_ms: row.get(10)?,
            bits_used: row.get::<_, i64>(11)?.cast_unsigned(),
            removed: row.get(12)?,
        })
    }

    /// Whether messages have completion records.
    pub(super) fn counts_references(&self) -> bool {
        self.tracking == Tracking::ReferenceCounting
    }
}

/// A subscription and its progress.
#[derive(Clone, Debug)]
pub(super) struct SubscriptionProgress {
    pub(super) subscription_id: i32,
    pub(super) group: String,
    pub(super) state: SubscriptionState,
    /// Whether messages are kept for it.
    pub(super) counts: bool,
    /// The offset at which the group began.
    pub(super) start: i64,
    /// Its bit in the completion records.
    pub(super) bit: Option<u32>,
    pub(super) required_from: i64,
    /// The number of lanes of an ordered subscription; else 0.
    pub(super) lanes: u16,
    /// The first offset never handed out; of an ordered subscription, that of its slowest lane.
    pub(super) next: i64,
    /// Everything at or below it is done.
    pub(super) floor: i64,
    /// Everything at or below it is set in the completion records as it is done, except what was touched since.
    pub(super) applied_until: i64,
}

/// An outstanding range of a subscription.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) lane: Option<u16>,
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) token: i64,
}

/// The outstanding ranges of a subscription that overlap some offsets. The cost depends on what is found and what is
/// in flight, not on how many ranges wait elsewhere.
pub(super) fn outstanding(
    connection: &Connection,
    subscription_id: i32,
    first: i64,
    last: i64,
) -> Attempt<Vec<Held>> {
    let mut held = leased(connection, subscription_id, first, last)?;
    held.append(&mut waiting(connection, subscription_id, first, last)?);
    Ok(held)
}

/// The offsets in outstanding ranges.
pub(super) fn covering(held: &[Held]) -> Ranges {
    Ranges::covering(held.iter().map(|held| (held.first, held.last)))
}

/// The leased ones among them.
pub(super) fn leased(
    connection: &Connection,
    subscription_id: i32,
    first: i64,
    last: i64,
) -> Attempt<Vec<Held>> {
    held(connection, super::sql!(outstanding.leased), subscription_id, first, last)
}

/// The waiting ones among them.
pub(super) fn waiting(
    connection: &Connection,
    subscription_id: i32,
    first: i64,
    last: i64,
) -> Attempt<Vec<Held>> {
    held(connection, super::sql!(outstanding.waiting), subscription_id, first, last)
}

fn held(
    connection: &Connection,
    sql: &'static str,
    subscription_id: i32,
    first: i64,
    last: i64,
) -> Attempt<Vec<Held>> {
    if first > last {
        return Ok(Vec::new());
    }
    let mut statement = connection.prepare_cached(sql)?;
    Ok(decode::all(&mut statement, params![subscription_id, first, last], |row| {
        Ok(Held { lane: row.get(0)?, first: row.get(1)?, last: row.get(2)?, token: row.get(3)? })
    })?)
}

impl SubscriptionProgress {
    /// All subscriptions of a topic that are not cancelled.
    pub(super) fn all(connection: &Connection, topic: TopicId) -> Attempt<Vec<Self>> {
        let mut statement = connection.prepare_cached(super::sql!(subscribe.all_progress))?;
        let mut found = decode::all(&mut statement, [topic.0], Self::read)?;
        for progress in &mut found {
            progress.read_outstanding(connection)?;
        }
        Ok(found)
    }

    /// One subscription, whatever its state, and its topic.
    pub(super) fn one(connection: &Connection, subscription_id: i32) -> Attempt<(TopicId, Self)> {
        let mut statement = connection.prepare_cached(super::sql!(subscribe.progress))?;
        let found = statement
            .query_row([subscription_id], |row| Ok((TopicId(row.get(10)?), Self::read(row)?)))
            .optional()?;
        let Some((topic, mut progress)) = found else {
            return Err(Error::no_such_subscription("", &format!("number {subscription_id}")).into());
        };
        progress.read_outstanding(connection)?;
        Ok((topic, progress))
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let state = SubscriptionState::parse(&row.get::<_, String>(2)?).map_err(|error| unknown(2, error))?;
        let semantics = decode::word::<Semantics>(row, 9)?;
        Ok(SubscriptionProgress {
            subscription_id: row.get(0)?,
            group: row.get(1)?,
            state,
            counts: state.counts(semantics),
            start: row.get(3)?,
            bit: row.get(4)?,
            required_from: row.get(5)?,
            lanes: row.get(6)?,
            applied_until: row.get(7)?,
            next: row.get(8)?,
            floor: 0,
        })
    }

    fn read_outstanding(&mut self, connection: &Connection) -> Attempt<()> {
        let mut statement = connection.prepare_cached(super::sql!(outstanding.lowest))?;
        let lowest: Option<i64> = statement.query_row([self.subscription_id], |row| row.get(0))?;
        self.floor = lowest.map_or(self.next, |lowest| lowest.min(self.next)) - 1;
        Ok(())
    }

    /// The offsets of a range that it has done: below `next` and in no outstanding range.
    pub(super) fn done(&self, connection: &Connection, first: i64, last: i64) -> Attempt<Ranges> {
        let held = outstanding(connection, self.subscription_id, first, last.min(self.next - 1))?;
        Ok(Ranges::of(first.max(1), last.min(self.next - 1)).without(&covering(&held)))
    }

    /// The offsets of a range that it has not done.
    pub(super) fn pending(&self, connection: &Connection, first: i64, last: i64) -> Attempt<Ranges> {
        Ok(Ranges::of(first, last).without(&self.done(connection, first, last)?))
    }
}

/// Everything at or below it is done for every counting subscription. Without one it does not move: messages
/// published since are above it, and so are those that dead subscriptions have not done.
pub(super) fn watermark(topic_range: &TopicRange, all_progress: &[SubscriptionProgress]) -> i64 {
    let end = if any_counts(all_progress) { topic_range.head } else { topic_range.zero_from - 1 };
    holding(all_progress).map(|progress| progress.floor).fold(end, i64::min)
}

/// The subscriptions that hold retention: all that count, or all that are left if none does.
pub(super) fn holding(all_progress: &[SubscriptionProgress]) -> impl Iterator<Item = &SubscriptionProgress> {
    let any_counts = any_counts(all_progress);
    all_progress.iter().filter(move |progress| progress.counts || !any_counts)
}

pub(super) fn any_counts(all_progress: &[SubscriptionProgress]) -> bool {
    all_progress.iter().any(|progress| progress.counts)
}

/// How far a step that begins at an offset may go: no subscription has more than `ranges_max` waiting ranges there.
pub(super) fn bounded<'s>(
    connection: &Connection,
    all_progress: impl Iterator<Item = &'s SubscriptionProgress>,
    first: i64,
    last: i64,
    ranges_max: u32,
) -> Attempt<i64> {
    let mut last = last;
    let mut statement = connection.prepare_cached(super::sql!(outstanding.crowd))?;
    for progress in all_progress {
        let bounds = params![progress.subscription_id, first, last, ranges_max];
        let crowd: Option<i64> = statement.query_row(bounds, |row| row.get(0)).optional()?;
        last = crowd.map_or(last, |crowd| (crowd - 1).max(first));
    }
    Ok(last)
}

/// A stored value that this program does not know.
fn unknown(at: usize, error: Error) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, Box::new(error))
}
