//! Retention: removes messages that have been done for long enough, or are too old, in bounded steps.
//!
//! Messages that every subscription has read are removed by the clock. Messages that some subscription has not read,
//! or that none could read, are removed only by their age in elapsed time (see [`age`]), counted as missed by the
//! remaining subscriptions, and logged.
//!
//! Pages that become free are used again by later messages: the file does not grow while cleanup keeps up. It does
//! not shrink either, because the store keeps SQLite's default of no `auto_vacuum`; to get the space back, run
//! `VACUUM` while nothing else has the file open.

use std::ops::ControlFlow;

use rusqlite::{Connection, params};

use self::age::Ages;
use super::fault::Attempt;
use super::standing::{Extent, Standing, any_counts, bounded, waiting, watermark};
use super::work::Work;
use super::{OFFSET_MAX, decode, lanes, log, settle, tracking};
use crate::message::Offset;
use crate::name::GroupName;
use crate::store::CleanStep;
use crate::store::sqlite::ranges::Ranges;
use crate::subscription::MissedMessages;
use crate::topic::TopicId;

mod age;
mod marks;

pub(super) use age::elapse;

/// How many messages a step visits at most for each message it may remove: messages that must stay neither block the
/// others forever nor hold up the writer.
const VISITED_PER_REMOVED: usize = 10;

/// Waiting ranges of each subscription that a step reads at most.
const RANGES_MAX: u32 = 2_000;

/// The progress of a pass over a topic, so that messages that must stay are not visited again by each step. Kept in
/// memory: after a restart the pass begins at the first message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pass {
    from: i64,
    removed: u64,
}

/// Removes what retention allows: see [`crate::store::Maintenance::clean`]. Also returns the topic's name, for the
/// log, and where the next step continues.
///
/// A pass ends at the last message that may be removed. If it removed something while it passed messages that must
/// stay, another pass begins at once: meanwhile more may have become removable below.
pub(super) fn clean(
    work: &mut Work<'_>,
    topic: TopicId,
    messages_max: u32,
    pass: Pass,
) -> Attempt<(String, CleanStep, Pass)> {
    let (connection, now_ms) = (work.connection, work.now_ms());
    let extent = Extent::load(connection, topic)?;
    let standings = Standing::all(connection, topic)?;
    let ages = Ages { connection, extent: &extent, elapsed_ms: elapse(work)? };
    ages.note()?;
    marks::write(connection, &extent, watermark(&extent, &standings), now_ms)?;
    let limits = Limits::of(&ages, &standings, now_ms)?;
    let places = Places::load(connection, &standings, pass.from.max(extent.first), limits.last())?;
    let picked = Rule { limits, places: &places }.pick(connection, &extent, messages_max as usize)?;
    let again = picked.next.is_none() && pass.from > extent.first && pass.removed > 0;
    let mut step = CleanStep { more: picked.next.is_some() || again, ..CleanStep::default() };
    if !picked.offsets.is_empty() {
        let lost = lost_by(connection, &extent, &places, &picked.offsets)?;
        step.removed = remove(connection, &extent, &picked.offsets)?;
        let first = raise_first(connection, &extent, step.removed)?;
        step.missed = miss(work, &extent, &lost)?;
        for standing in standings.iter().filter(|standing| standing.next < first) {
            work.connection
                .prepare_cached(super::sql!(resurrect.advance))?
                .execute(params![standing.subscription_id, first])?;
        }
    }
    step.more |= forget_acks(work.connection, topic, messages_max)?;
    let removed = pass.removed + step.removed;
    let pass = picked.next.map_or(Pass::default(), |from| Pass { from, removed });
    Ok((extent.name, step, pass))
}

/// What subscriptions have done of the offsets of a step.
struct Places<'s> {
    standings: &'s [Standing],
    first: i64,
    last: i64,
    /// For each subscription; empty where the step has no offsets.
    done: Vec<Ranges>,
}

impl<'s> Places<'s> {
    /// From one offset up to another, or as far as one step may read.
    fn load(connection: &Connection, standings: &'s [Standing], first: i64, last: i64) -> Attempt<Self> {
        let last = match first <= last {
            true => bounded(connection, standings.iter(), first, last, RANGES_MAX)?,
            false => last,
        };
        let done = standings.iter().map(|standing| standing.done(connection, first, last));
        Ok(Places { standings, first, last, done: done.collect::<Attempt<_>>()? })
    }

    /// What all subscriptions have done, or only those that hold retention.
    fn done_by_all(&self, holding: bool) -> Ranges {
        let any_counts = any_counts(self.standings);
        let chosen = |standing: &Standing| !holding || standing.counts || !any_counts;
        let all = self.standings.iter().zip(&self.done).filter(|(standing, _)| chosen(standing));
        all.fold(Ranges::of(self.first, self.last), |common, (_, done)| common.intersection(done))
    }
}

/// What may be removed at present, apart from what subscriptions have done.
struct Limits {
    /// Old enough in elapsed time to be removed unread: older than `max_retention`, or published while no
    /// subscription counted, and still none does.
    aged: Ranges,
    /// A message that every subscription has read may be removed if it was created at or before this time.
    forced_until_ms: Option<i64>,
    /// The last offset that such a message can have.
    forced_until: i64,
    /// A message that is done for the subscriptions that hold retention may be removed up to this offset.
    done_until: i64,
    /// If other subscriptions have not read it, it must also be in these ranges: old enough in elapsed time.
    unread: Ranges,
    /// In reference counting, the completion record must have been completed at or before this time.
    completed_until_ms: Option<i64>,
    /// At or below this offset messages must also have been created at or before the time.
    zero_until: i64,
    zero_until_ms: i64,
    /// Offsets that may satisfy this rule.
    old_enough: Ranges,
}

impl Limits {
    fn of(ages: &Ages<'_>, standings: &[Standing], now_ms: i64) -> Attempt<Self> {
        let (connection, extent) = (ages.connection, ages.extent);
        let before = |retention_ms: i64| now_ms.saturating_sub(retention_ms);
        let completed_until_ms =
            extent.message_retention_ms.filter(|_| extent.counts_references()).map(before);
        let done_until = match (extent.message_retention_ms, completed_until_ms) {
            (None, _) => 0,
            // Nothing is completed before it is created.
            (_, Some(until_ms)) => {
                let end = if any_counts(standings) { extent.head } else { extent.zero_from - 1 };
                created_until(connection, extent, until_ms, now_ms)?.min(extent.tracked_until).min(end)
            }
            (Some(retention_ms), None) => marks::since(connection, extent.topic, before(retention_ms))?
                .min(watermark(extent, standings)),
        };
        let forced_until_ms = extent.max_retention_ms.map(before);
        let forced_until = match forced_until_ms.filter(|_| !standings.is_empty()) {
            Some(until_ms) => created_until(connection, extent, until_ms, now_ms)?,
            None => 0,
        };
        let (zero_until, zero_until_ms) =
            (extent.zero_until.unwrap_or(OFFSET_MAX), before(extent.zero_subscription_retention_ms));
        let old_enough = Ranges::of(1, created_until(connection, extent, zero_until_ms, now_ms)?)
            .union(&Ranges::of(zero_until.saturating_add(1), OFFSET_MAX));
        let (aged, unread) = (aged(ages, standings)?, unread_long_enough(ages)?);
        Ok(Limits {
            aged,
            forced_until_ms,
            forced_until,
            done_until,
            unread,
            completed_until_ms,
            zero_until,
            zero_until_ms,
            old_enough,
        })
    }

    /// Nothing above this offset may be removed.
    fn last(&self) -> i64 {
        self.aged.last().unwrap_or(0).max(self.forced_until).max(self.done_until)
    }
}

/// What may be removed of the offsets of a step.
struct Rule<'p> {
    limits: Limits,
    places: &'p Places<'p>,
}

/// The same as sets of offsets: only messages within them are checked one by one.
struct Candidates {
    aged: Ranges,
    read: Ranges,
    done: Ranges,
    region: Ranges,
}

impl Rule<'_> {
    fn candidates(&self, extent: &Extent) -> Candidates {
        let Limits { aged, forced_until, done_until, unread, old_enough, .. } = &self.limits;
        let stored = Ranges::of(self.places.first, self.places.last.min(extent.head));
        let read = match self.places.standings.is_empty() {
            true => Ranges::default(),
            false => self.places.done_by_all(false).intersection(&stored),
        };
        let done = self.places.done_by_all(true).intersection(&stored).within(1, *done_until);
        let done = done.intersection(&read.union(unread));
        let aged = aged.intersection(&stored);
        let region = done.intersection(old_enough).union(&read.within(1, *forced_until)).union(&aged);
        Candidates { aged, read, done, region }
    }

    fn allows(
        &self,
        candidates: &Candidates,
        offset: i64,
        created_at_ms: i64,
        completed_at_ms: Option<i64>,
    ) -> bool {
        let limits = &self.limits;
        let by = |at_ms: i64, until_ms: Option<i64>| until_ms.is_some_and(|until_ms| at_ms <= until_ms);
        let completed = limits
            .completed_until_ms
            .is_none_or(|_| completed_at_ms.is_some_and(|at_ms| by(at_ms, limits.completed_until_ms)));
        let seasoned = offset > limits.zero_until || created_at_ms <= limits.zero_until_ms;
        candidates.aged.contains(offset)
            || (candidates.read.contains(offset) && by(created_at_ms, limits.forced_until_ms))
            || (candidates.done.contains(offset) && completed && seasoned)
    }

    /// The lowest messages that may be removed.
    fn pick(&self, connection: &Connection, extent: &Extent, at_most: usize) -> Attempt<Picked> {
        let candidates = self.candidates(extent);
        let (mut offsets, mut visited) = (Vec::new(), 0);
        for (first, last) in candidates.region.iter() {
            let stopped =
                log::visit_ages(connection, extent.topic, first, last, |offset, created, completed| {
                    if offsets.len() == at_most || visited == at_most * VISITED_PER_REMOVED {
                        return ControlFlow::Break(offset);
                    }
                    visited += 1;
                    if self.allows(&candidates, offset, created, completed) {
                        offsets.push(offset);
                    }
                    ControlFlow::Continue(())
                })?;
            if let ControlFlow::Break(next) = stopped {
                return Ok(Picked { offsets: covering(&offsets), next: Some(next) });
            }
        }
        let next = (self.places.last < self.limits.last()).then_some(self.places.last + 1);
        Ok(Picked { offsets: covering(&offsets), next })
    }
}

/// Messages that are old enough to be removed as done although a dead subscription has not read them, or no
/// subscription is left.
fn unread_long_enough(ages: &Ages<'_>) -> Attempt<Ranges> {
    let Some(retention_ms) = ages.extent.message_retention_ms else { return Ok(Ranges::default()) };
    let zero_until = ages.extent.zero_until.unwrap_or(OFFSET_MAX);
    let seasoned = Ranges::of(1, ages.reached(ages.extent.zero_subscription_retention_ms)?)
        .union(&Ranges::of(zero_until.saturating_add(1), OFFSET_MAX));
    Ok(seasoned.within(1, ages.reached(retention_ms)?))
}

/// Messages that are removed by age alone, no matter which subscriptions have not read them.
fn aged(ages: &Ages<'_>, standings: &[Standing]) -> Attempt<Ranges> {
    let Extent { message_retention_ms, max_retention_ms, zero_subscription_retention_ms, zero_from, .. } =
        ages.extent;
    let mut aged = match max_retention_ms {
        Some(retention_ms) => Ranges::of(1, ages.reached(*retention_ms)?),
        None => Ranges::default(),
    };
    if let Some(retention_ms) = message_retention_ms
        && !any_counts(standings)
    {
        let least_ms = (*zero_subscription_retention_ms).max(*retention_ms);
        aged = aged.union(&Ranges::of(*zero_from, ages.reached(least_ms)?));
    }
    Ok(aged)
}

/// What a step removes.
struct Picked {
    offsets: Ranges,
    /// Where the next step continues; `None` at the end.
    next: Option<i64>,
}

fn covering(offsets: &[i64]) -> Ranges {
    Ranges::covering(offsets.iter().map(|offset| (*offset, *offset)))
}

/// The last offset created at or before a time, by a binary search: one writer at a time stamps messages as it
/// appends them, so times rise with offsets as long as the clock does. Code that removes a message also checks its
/// own time.
fn created_until(connection: &Connection, extent: &Extent, until_ms: i64, now_ms: i64) -> Attempt<i64> {
    // Everything below `low` is old enough; `high` and everything above is not, or is past the end.
    let (mut low, mut high) = (extent.first, extent.head + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        match stamped_by(connection, extent, middle, high, now_ms)? {
            Some((offset, created_at_ms)) if created_at_ms <= until_ms => low = offset + 1,
            _ => high = middle,
        }
    }
    Ok(low - 1)
}

/// The first message from an offset on, and when it was created. Messages from the future are skipped, by a binary
/// search too: a clock that was ahead for a while stamped them, and they show nothing about the messages after them.
fn stamped_by(
    connection: &Connection,
    extent: &Extent,
    from: i64,
    end: i64,
    now_ms: i64,
) -> Attempt<Option<(i64, i64)>> {
    let (mut at, mut low, mut high, mut found) = (from, from, end, None);
    while low < high {
        match log::first_in(connection, extent.topic, at, high - 1)? {
            Some((offset, created_at_ms)) if created_at_ms > now_ms => low = offset + 1,
            seen => (high, found) = (at, seen.or(found)),
        }
        at = low + (high - low) / 2;
    }
    Ok(found)
}

/// Removes messages with their completion records, range by range.
fn remove(connection: &Connection, extent: &Extent, offsets: &Ranges) -> Attempt<u64> {
    let mut removed = 0;
    for (first, last) in offsets.iter() {
        removed += log::remove(connection, extent.topic, first, last)?;
    }
    tracking::forget_messages(connection, extent.topic, offsets)?;
    debug_assert_eq!(removed, offsets.count(), "only visited messages are removed");
    Ok(removed)
}

/// Moves the topic's first offset up to the lowest message that is left.
fn raise_first(connection: &Connection, extent: &Extent, removed: u64) -> Attempt<i64> {
    let lowest = log::first_in(connection, extent.topic, extent.first, OFFSET_MAX)?;
    let first = lowest.map_or(extent.head + 1, |(offset, _)| offset);
    let removed = i64::try_from(removed).unwrap_or(i64::MAX);
    connection.prepare_cached(super::sql!(clean.raise_first))?.execute(params![
        extent.topic.0,
        first,
        removed
    ])?;
    Ok(first)
}

/// What a subscription loses.
struct Lost<'s> {
    standing: &'s Standing,
    /// Offsets at which it had something to do.
    pending: Ranges,
    /// The messages it had not done.
    owed: Ranges,
}

/// What subscriptions have not done of messages that are about to be removed.
fn lost_by<'s>(
    connection: &Connection,
    extent: &Extent,
    places: &Places<'s>,
    going: &Ranges,
) -> Attempt<Vec<Lost<'s>>> {
    let mut lost = Vec::new();
    for (standing, done) in places.standings.iter().zip(&places.done) {
        let pending = going.without(done);
        if !pending.is_empty() {
            let owed = lanes::owed(connection, extent.topic, standing, &pending)?;
            lost.push(Lost { standing, pending, owed });
        }
    }
    Ok(lost)
}

/// Counts messages that were removed before subscriptions had done them, and removes the ranges that wait for them.
fn miss(
    work: &mut Work<'_>,
    extent: &Extent,
    lost: &[Lost<'_>],
) -> Attempt<Vec<(GroupName, MissedMessages)>> {
    let mut missed = Vec::new();
    let mut unblocked = 0;
    for Lost { standing, pending, owed } in lost {
        note_missed(work.connection, standing.subscription_id, owed.count(), owed.first().zip(owed.last()))?;
        unblocked += forget_ranges(work.connection, extent.topic, standing.subscription_id, pending)?;
        if let Some((first, last)) = owed.first().zip(owed.last()) {
            let range = Some((Offset(first), Offset(last)));
            let group = GroupName::new(standing.group.clone())?;
            missed.push((group, MissedMessages { count: owed.count(), range }));
        }
    }
    if unblocked > 0 {
        // In a lane other messages may have waited behind them.
        settle::stir(work, extent.topic)?;
    }
    Ok(missed)
}

/// Removes waiting ranges of which no message is left. Returns how many.
fn forget_ranges(
    connection: &Connection,
    topic: TopicId,
    subscription_id: i32,
    pending: &Ranges,
) -> Attempt<usize> {
    let Some((first, last)) = pending.first().zip(pending.last()) else { return Ok(0) };
    let mut forget = connection.prepare_cached(super::sql!(clean.forget_range))?;
    let mut forgotten = 0;
    for waiting in waiting(connection, subscription_id, first, last)? {
        if log::first_in(connection, topic, waiting.first, waiting.last)?.is_none() {
            forgotten += forget.execute(params![subscription_id, waiting.token, waiting.first])?;
        }
    }
    Ok(forgotten)
}

/// Adds messages that a subscription will never receive, and the first and last of them, to what it has missed.
pub(super) fn note_missed(
    connection: &Connection,
    subscription_id: i32,
    messages: u64,
    range: Option<(i64, i64)>,
) -> Attempt<()> {
    let Some((first, last)) = range else { return Ok(()) };
    let messages = i64::try_from(messages).unwrap_or(i64::MAX);
    connection.prepare_cached(super::sql!(clean.missed))?.execute(params![
        subscription_id,
        messages,
        first,
        last
    ])?;
    Ok(())
}

/// Removes ack log entries of messages that are removed, at most as many as a step has messages; true if more are
/// left.
fn forget_acks(connection: &Connection, topic: TopicId, lines_max: u32) -> Attempt<bool> {
    let mut statement = connection.prepare_cached(super::sql!(clean.forget_acks))?;
    let forgotten = statement.execute(params![topic.0, lines_max])?;
    Ok(u32::try_from(forgotten).is_ok_and(|forgotten| forgotten == lines_max))
}

/// Removes entries of the watermark history and of the age history that no retention needs any more. Returns how
/// many.
pub(super) fn forget_marks(work: &mut Work<'_>) -> Attempt<u64> {
    let (connection, now_ms, elapsed_ms) = (work.connection, work.now_ms(), elapse(work)?);
    let topics: Vec<i32> = {
        let mut statement = connection.prepare_cached(super::sql!(clean.topics))?;
        decode::all(&mut statement, [], |row| row.get(0))?
    };
    let mut forgotten = 0;
    for topic in topics {
        let extent = Extent::load(connection, TopicId(topic))?;
        forgotten += marks::prune(connection, &extent, now_ms)?;
        forgotten += Ages { connection, extent: &extent, elapsed_ms }.prune()?;
    }
    Ok(forgotten)
}
