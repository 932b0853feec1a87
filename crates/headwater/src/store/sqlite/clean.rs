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
use super::progress::{SubscriptionProgress, TopicRange, any_counts, bounded, waiting, watermark};
use super::step_bytes::StepBytes;
use super::work::{Work, wake};
use super::{OFFSET_MAX, decode, lanes, log, tracking};
use crate::message::Offset;
use crate::name::GroupName;
use crate::store::CleanStep;
use crate::store::sqlite::ranges::Ranges;
use crate::subscription::MissedMessages;
use crate::topic::TopicId;

mod age;
pub(super) mod watermark_history;

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
    let topic_range = TopicRange::load(connection, topic)?;
    let all_progress = SubscriptionProgress::all(connection, topic)?;
    let ages = Ages { connection, topic_range: &topic_range, elapsed_ms: elapse(work)? };
    ages.note()?;
    watermark_history::write(connection, &topic_range, watermark(&topic_range, &all_progress), now_ms)?;
    let limits = Limits::of(&ages, &all_progress, now_ms)?;
    let step_progress =
        StepProgress::load(connection, &all_progress, pass.from.max(topic_range.first), limits.last())?;
    let picked = Rule { limits, step_progress: &step_progress }.pick(
        connection,
        &topic_range,
        messages_max as usize,
    )?;
    let again = picked.next.is_none() && pass.from > topic_range.first && pass.removed > 0;
    let mut step = CleanStep { more: picked.next.is_some() || again, ..CleanStep::default() };
    if !picked.offsets.is_empty() {
        let lost = lost_by(connection, &topic_range, &step_progress, &picked.offsets)?;
        step.removed = remove(connection, &topic_range, &picked.offsets)?;
        let first = raise_first(connection, &topic_range, step.removed)?;
        step.missed = miss(work, &topic_range, &lost)?;
        for progress in all_progress.iter().filter(|progress| progress.next < first) {
            work.connection
                .prepare_cached(super::sql!(resurrect.advance))?
                .execute(params![progress.subscription_id, first])?;
        }
    }
    step.more |= forget_acks(work.connection, topic, messages_max)?;
    let removed = pass.removed + step.removed;
    let pass = picked.next.map_or(Pass::default(), |from| Pass { from, removed });
    Ok((topic_range.name, step, pass))
}

/// What subscriptions have done of the offsets of a step.
struct StepProgress<'s> {
    all_progress: &'s [SubscriptionProgress],
    first: i64,
    last: i64,
    /// For each subscription; empty where the step has no offsets.
    done: Vec<Ranges>,
}

impl<'s> StepProgress<'s> {
    /// From one offset up to another, or as far as one step may read.
    fn load(
        connection: &Connection,
        all_progress: &'s [SubscriptionProgress],
        first: i64,
        last: i64,
    ) -> Attempt<Self> {
        let last = match first <= last {
            true => bounded(connection, all_progress.iter(), first, last, RANGES_MAX)?,
            false => last,
        };
        let done = all_progress.iter().map(|progress| progress.done(connection, first, last));
        Ok(StepProgress { all_progress, first, last, done: done.collect::<Attempt<_>>()? })
    }

    /// What all subscriptions have done, or only those that hold retention.
    fn done_by_all(&self, holding: bool) -> Ranges {
        let any_counts = any_counts(self.all_progress);
        let chosen = |progress: &SubscriptionProgress| !holding || progress.counts || !any_counts;
        let all = self.all_progress.iter().zip(&self.done).filter(|(progress, _)| chosen(progress));
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
    fn of(ages: &Ages<'_>, all_progress: &[SubscriptionProgress], now_ms: i64) -> Attempt<Self> {
        let (connection, topic_range) = (ages.connection, ages.topic_range);
        let before = |retention_ms: i64| now_ms.saturating_sub(retention_ms);
        let completed_until_ms =
            topic_range.message_retention_ms.filter(|_| topic_range.counts_references()).map(before);
        let done_until = match (topic_range.message_retention_ms, completed_until_ms) {
            (None, _) => 0,
            // Nothing is completed before it is created.
            (_, Some(until_ms)) => {
                let end = if any_counts(all_progress) { topic_range.head } else { topic_range.zero_from - 1 };
                created_until(connection, topic_range, until_ms, now_ms)?
                    .min(topic_range.tracked_until)
                    .min(end)
            }
            (Some(retention_ms), None) => {
                watermark_history::since(connection, topic_range.topic, before(retention_ms))?
                    .min(watermark(topic_range, all_progress))
            }
        };
        let forced_until_ms = topic_range.max_retention_ms.map(before);
        let forced_until = match forced_until_ms.filter(|_| !all_progress.is_empty()) {
            Some(until_ms) => created_until(connection, topic_range, until_ms, now_ms)?,
            None => 0,
        };
        let (zero_until, zero_until_ms) = (
            topic_range.zero_until.unwrap_or(OFFSET_MAX),
            before(topic_range.zero_subscription_retention_ms),
        );
        let old_enough = Ranges::of(1, created_until(connection, topic_range, zero_until_ms, now_ms)?)
            .union(&Ranges::of(zero_until.saturating_add(1), OFFSET_MAX));
        let (aged, unread) = (aged(ages, all_progress)?, unread_long_enough(ages)?);
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
    step_progress: &'p StepProgress<'p>,
}

/// The same as sets of offsets: only messages within them are checked one by one.
struct Candidates {
    aged: Ranges,
    read: Ranges,
    done: Ranges,
    region: Ranges,
}

impl Rule<'_> {
    fn candidates(&self, topic_range: &TopicRange) -> Candidates {
        let Limits { aged, forced_until, done_until, unread, old_enough, .. } = &self.limits;
        let stored = Ranges::of(self.step_progress.first, self.step_progress.last.min(topic_range.head));
        let read = match self.step_progress.all_progress.is_empty() {
            true => Ranges::default(),
            false => self.step_progress.done_by_all(false).intersection(&stored),
        };
        let done = self.step_progress.done_by_all(true).intersection(&stored).within(1, *done_until);
        let done = done.intersection(&read.union(unread));
        let aged = aged.intersection(&stored);
        let region = done.intersection(old_enough).union(&read.within(1, *forced_until)).union(&aged);
        Candidates { aged, read, done, region }
    }

    fn allows(&self, candidates: &Candidates, message: &log::Aged) -> bool {
        let (limits, log::Aged { offset, created_at_ms, completed_at_ms, .. }) = (&self.limits, *message);
        let by = |at_ms: i64, until_ms: Option<i64>| until_ms.is_some_and(|until_ms| at_ms <= until_ms);
        let completed = limits
            .completed_until_ms
            .is_none_or(|_| completed_at_ms.is_some_and(|at_ms| by(at_ms, limits.completed_until_ms)));
        let seasoned = offset > limits.zero_until || created_at_ms <= limits.zero_until_ms;
        candidates.aged.contains(offset)
            || (candidates.read.contains(offset) && by(created_at_ms, limits.forced_until_ms))
            || (candidates.done.contains(offset) && completed && seasoned)
    }

    /// The lowest messages that may be removed: so many, and as many bytes of payloads as a step may remove.
    fn pick(&self, connection: &Connection, topic_range: &TopicRange, at_most: usize) -> Attempt<Picked> {
        let candidates = self.candidates(topic_range);
        let (mut offsets, mut visited, mut bytes) = (Vec::new(), 0, StepBytes::default());
        for (first, last) in candidates.region.iter() {
            let stopped = log::visit_ages(connection, topic_range.topic, first, last, |message| {
                if offsets.len() == at_most || visited == at_most * VISITED_PER_REMOVED {
                    return ControlFlow::Break(message.offset);
                }
                visited += 1;
                if self.allows(&candidates, &message) {
                    if !bytes.take(message.payload_bytes) {
                        return ControlFlow::Break(message.offset);
                    }
                    offsets.push(message.offset);
                }
                ControlFlow::Continue(())
            })?;
            if let ControlFlow::Break(next) = stopped {
                return Ok(Picked { offsets: covering(&offsets), next: Some(next) });
            }
        }
        let next = (self.step_progress.last < self.limits.last()).then_some(self.step_progress.last + 1);
        Ok(Picked { offsets: covering(&offsets), next })
    }
}

/// Messages that are old enough to be removed as done although a dead subscription has not read them, or no
/// subscription is left.
fn unread_long_enough(ages: &Ages<'_>) -> Attempt<Ranges> {
    let Some(retention_ms) = ages.topic_range.message_retention_ms else { return Ok(Ranges::default()) };
    let zero_until = ages.topic_range.zero_until.unwrap_or(OFFSET_MAX);
    let seasoned = Ranges::of(1, ages.reached(ages.topic_range.zero_subscription_retention_ms)?)
        .union(&Ranges::of(zero_until.saturating_add(1), OFFSET_MAX));
    Ok(seasoned.within(1, ages.reached(retention_ms)?))
}

/// Messages that are removed by age alone, no matter which subscriptions have not read them.
fn aged(ages: &Ages<'_>, all_progress: &[SubscriptionProgress]) -> Attempt<Ranges> {
    let TopicRange {
        message_retention_ms, max_retention_ms, zero_subscription_retention_ms, zero_from, ..
    } = ages.topic_range;
    let mut aged = match max_retention_ms {
        Some(retention_ms) => Ranges::of(1, ages.reached(*retention_ms)?),
        None => Ranges::default(),
    };
    if let Some(retention_ms) = message_retention_ms
        && !any_counts(all_progress)
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
fn created_until(
    connection: &Connection,
    topic_range: &TopicRange,
    until_ms: i64,
    now_ms: i64,
) -> Attempt<i64> {
    // Everything below `low` is old enough; `high` and everything above is not, or is past the end.
    let (mut low, mut high) = (topic_range.first, topic_range.head + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        match stamped_by(connection, topic_range, middle, high, now_ms)? {
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
    topic_range: &TopicRange,
    from: i64,
    end: i64,
    now_ms: i64,
) -> Attempt<Option<(i64, i64)>> {
    let (mut at, mut low, mut high, mut found) = (from, from, end, None);
    while low < high {
        match log::first_in(connection, topic_range.topic, at, high - 1)? {
            Some((offset, created_at_ms)) if created_at_ms > now_ms => low = offset + 1,
            seen => (high, found) = (at, seen.or(found)),
        }
        at = low + (high - low) / 2;
    }
    Ok(found)
}

/// Removes messages with their completion records, range by range.
pub(super) fn remove(connection: &Connection, topic_range: &TopicRange, offsets: &Ranges) -> Attempt<u64> {
    let mut removed = 0;
    for (first, last) in offsets.iter() {
        removed += log::remove(connection, topic_range.topic, first, last)?;
    }
    tracking::forget_messages(connection, topic_range.topic, offsets)?;
    debug_assert_eq!(removed, offsets.count(), "only visited messages are removed");
    Ok(removed)
}

/// Moves the topic's first offset up to the lowest message that is left.
pub(super) fn raise_first(connection: &Connection, topic_range: &TopicRange, removed: u64) -> Attempt<i64> {
    let lowest = log::first_in(connection, topic_range.topic, topic_range.first, OFFSET_MAX)?;
    let first = lowest.map_or(topic_range.head + 1, |(offset, _)| offset);
    let removed = i64::try_from(removed).unwrap_or(i64::MAX);
    connection.prepare_cached(super::sql!(clean.raise_first))?.execute(params![
        topic_range.topic.0,
        first,
        removed
    ])?;
    Ok(first)
}

/// What a subscription loses.
struct Lost<'s> {
    progress: &'s SubscriptionProgress,
    /// Offsets at which it had something to do.
    pending: Ranges,
    /// The messages it had not done.
    owed: Ranges,
}

/// What subscriptions have not done of messages that are about to be removed.
fn lost_by<'s>(
    connection: &Connection,
    topic_range: &TopicRange,
    step_progress: &StepProgress<'s>,
    going: &Ranges,
) -> Attempt<Vec<Lost<'s>>> {
    let mut lost = Vec::new();
    for (progress, done) in step_progress.all_progress.iter().zip(&step_progress.done) {
        let pending = going.without(done);
        if !pending.is_empty() {
            let owed = lanes::owed(connection, topic_range.topic, progress, &pending)?;
            lost.push(Lost { progress, pending, owed });
        }
    }
    Ok(lost)
}

/// Counts messages that were removed before subscriptions had done them, and removes the ranges that wait for them.
fn miss(
    work: &mut Work<'_>,
    topic_range: &TopicRange,
    lost: &[Lost<'_>],
) -> Attempt<Vec<(GroupName, MissedMessages)>> {
    let mut missed = Vec::new();
    let mut unblocked = 0;
    for Lost { progress, pending, owed } in lost {
        note_missed(work.connection, progress.subscription_id, owed.count(), owed.first().zip(owed.last()))?;
        unblocked += forget_ranges(work.connection, topic_range.topic, progress.subscription_id, pending)?;
        if let Some((first, last)) = owed.first().zip(owed.last()) {
            let range = Some((Offset(first), Offset(last)));
            let group = GroupName::new(progress.group.clone())?;
            missed.push((group, MissedMessages { count: owed.count(), range }));
        }
    }
    if unblocked > 0 {
        // In a lane other messages may have waited behind them.
        wake(work, topic_range.topic)?;
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
pub(super) fn forget_acks(connection: &Connection, topic: TopicId, lines_max: u32) -> Attempt<bool> {
    let mut statement = connection.prepare_cached(super::sql!(clean.forget_acks))?;
    let forgotten = statement.execute(params![topic.0, lines_max])?;
    Ok(u32::try_from(forgotten).is_ok_and(|forgotten| forgotten == lines_max))
}

/// Removes entries of the watermark history and of the age history that no retention needs any more. Returns how
/// many.
pub(super) fn forget_watermarks(work: &mut Work<'_>) -> Attempt<u64> {
    let (connection, now_ms, elapsed_ms) = (work.connection, work.now_ms(), elapse(work)?);
    let topics: Vec<i32> = {
        let mut statement = connection.prepare_cached(super::sql!(clean.topics))?;
        decode::all(&mut statement, [], |row| row.get(0))?
    };
    let mut forgotten = 0;
    for topic in topics {
        let topic_range = TopicRange::load(connection, TopicId(topic))?;
        forgotten += watermark_history::prune(connection, &topic_range, now_ms)?;
        forgotten += Ages { connection, topic_range: &topic_range, elapsed_ms }.prune()?;
    }
    Ok(forgotten)
}
