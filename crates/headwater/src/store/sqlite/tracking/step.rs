//! One bounded step of bringing a topic's completion records up to date.
//!
//! Changes are found without reading what did not change, although neither claims nor acks record anything. Up to
//! `applied_until` of a subscription, `applied` is what it has done, except for what is in `headwater_touched`:
//!
//! 1. Beyond `applied_until` a step reads the next ranges up to the cursor, applies them, and moves `applied_until`.
//!    A lease that it finds is recorded in `headwater_touched` by its token, and checked again once its row is gone
//!    or shorter: acked, retried, expired or removed.
//! 2. A range that begins or stops waiting is recorded by triggers: it is handed out again, redriven as a
//!    dead letter, or removed.
//! 3. A cursor that is set back also sets `applied_until` back.
//!
//! An offset at or below `applied_until` is handed out only from a waiting range (2), and a lease below it was found
//! (1) or comes from such a range; so no other offset changes. All of this is in the transaction that changes the
//! ranges: a crash undoes both or neither, and a repeated step finds the same.

use rusqlite::{Connection, OptionalExtension, params};

use super::{applied, forget_bits, set_applied, signed};
use crate::store::TrackStep;
use crate::store::sqlite::fault::Attempt;
use crate::store::sqlite::progress::{self, Held, SubscriptionProgress, TopicRange, covering};
use crate::store::sqlite::ranges::{Masks, Ranges, Segment, segments};
use crate::store::sqlite::work::Work;
use crate::store::sqlite::{OFFSET_MAX, decode, log, offset_of, row_key};
use crate::topic::TopicId;

/// Rows of `headwater_touched` that a step handles at most: each needs its own queries.
const TOUCHED_MAX: u32 = 250;

/// Brings the completion records of a topic up to date, or removes those that a change of mode has left: see
/// [`crate::store::Tracking::track`].
pub(super) fn track(work: &mut Work<'_>, topic: TopicId, messages_max: u32) -> Attempt<TrackStep> {
    let topic_range = TopicRange::load(work.connection, topic)?;
    if !topic_range.counts_references() {
        return remove_records(work, &topic_range, messages_max);
    }
    let mut groups = SubscriptionProgress::all(work.connection, topic)?;
    groups.retain(|progress| progress.counts && progress.bit.is_some());
    let (left, now_ms, step) = (i64::from(messages_max), work.now_ms(), TrackStep::default());
    let mut tracking = Tracking { work, topic_range, groups, messages_max, left, now_ms, step };
    tracking.record_new()?;
    tracking.apply_changes()?;
    tracking.release()?;
    tracking.finish()
}

/// A step in progress.
struct Tracking<'w, 'c> {
    work: &'w mut Work<'c>,
    topic_range: TopicRange,
    /// The counting subscriptions.
    groups: Vec<SubscriptionProgress>,
    /// Messages, and ranges of each group, that a step may touch.
    messages_max: u32,
    /// Messages that it may still touch.
    left: i64,
    now_ms: i64,
    step: TrackStep,
}

/// What a step checks of one group, and what it finds.
struct Checked {
    /// The offsets to check: rows of `headwater_touched`.
    touched: Vec<(i64, i64, i64)>,
    /// The first and last offset to check beyond `applied_until`.
    fresh: (i64, i64),
    /// Leases among these offsets.
    leases: Vec<Held>,
    /// Offsets that are done but not set, and offsets that are set but not done.
    set: Ranges,
    unset: Ranges,
    /// There is more than one step can check.
    more: bool,
}

impl Tracking<'_, '_> {
    /// Creates the completion records of messages that have none, from the present state.
    fn record_new(&mut self) -> Attempt<()> {
        let connection = self.work.connection;
        let first = self.topic_range.tracked_until.max(self.topic_range.first - 1) + 1;
        let last = self.topic_range.head.min(first + self.left - 1);
        if first <= last {
            let mut layers = Vec::with_capacity(self.groups.len() * 2);
            for group in &self.groups {
                let done = group.done(connection, first, last)?;
                layers.extend(as_layers(group, &done, first, last));
                set_applied(connection, group.subscription_id, (first, last), &done)?;
            }
            for segment in segments(&layers, first, last) {
                let Segment { first, last, masks } = segment;
                let completed_at_ms = (masks.one == masks.two).then_some(self.now_ms);
                let made =
                    log::record(connection, self.topic_range.topic, first, last, masks, completed_at_ms)?;
                self.step.recorded += made;
                self.step.completed += completed_at_ms.map_or(0, |_| made);
            }
            self.left -= last - first + 1;
        }
        self.topic_range.tracked_until = self.topic_range.tracked_until.max(last);
        Ok(())
    }

    /// Sets what groups have done since, and unsets what is redelivered to them: one update per message for all
    /// groups.
    fn apply_changes(&mut self) -> Attempt<()> {
        let checked: Vec<Checked> =
            self.groups.iter().map(|group| self.check(group)).collect::<Attempt<_>>()?;
        let mut layers = Vec::with_capacity(self.groups.len() * 2);
        for (group, checked) in self.groups.iter().zip(&checked) {
            layers.push((checked.set.clone(), Masks { one: group.mask(), two: 0 }));
            layers.push((checked.unset.clone(), Masks { one: 0, two: group.mask() }));
        }
        let (dealt, complete) = self.apply(&layers)?;
        for (group, checked) in self.groups.iter().zip(checked) {
            self.step.more |= checked.more || !complete;
            keep(self.work, group, checked, &dealt, self.topic_range.first)?;
        }
        Ok(())
    }

    /// The last offset for which a group's completion can be determined.
    fn reach(&self, group: &SubscriptionProgress) -> i64 {
        self.topic_range.tracked_until.min(group.next - 1)
    }

    /// What may have changed for a group since the last step, and what did.
    fn check(&self, group: &SubscriptionProgress) -> Attempt<Checked> {
        let connection = self.work.connection;
        let mut statement = connection.prepare_cached(sql!(tracking.touched))?;
        let touched_max = self.messages_max.min(TOUCHED_MAX);
        let bounds = params![group.subscription_id, touched_max];
        let touched: Vec<(i64, i64, i64)> =
            decode::all(&mut statement, bounds, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        // Removed messages have no completion record to change.
        let from = group.applied_until.min(group.next - 1).max(self.topic_range.first - 1) + 1;
        let until = progress::bounded(
            connection,
            std::iter::once(group),
            from,
            self.reach(group),
            self.messages_max,
        )?;
        let until = self.bounded_applied(group, from, until)?;
        let checked = Ranges::covering(touched.iter().map(|(first, _, last)| (*first, *last)));
        let checked = checked.within(self.topic_range.first, from - 1).union(&Ranges::of(from, until));
        let (mut waiting, mut set) = (Vec::new(), Vec::new());
        for (first, last) in checked.iter() {
            waiting.extend(progress::waiting(connection, group.subscription_id, first, last)?);
            set.extend(applied(connection, group.subscription_id, first, last)?.iter());
        }
        let (first, last) = (checked.first().unwrap_or(0), checked.last().unwrap_or(-1));
        let leases = progress::leased(connection, group.subscription_id, first, last)?;
        let held = covering(&waiting).union(&covering(&leases));
        let done = checked.within(1, group.next - 1).without(&held);
        // Beyond the cursor nothing is done, whatever was set before the cursor was set back.
        let beyond = from.max(self.reach(group) + 1);
        let mut more = until < self.reach(group) || touched.len() == touched_max as usize;
        if until + 1 >= beyond && beyond <= self.topic_range.tracked_until {
            let last = self.bounded_applied(group, beyond, self.topic_range.tracked_until)?;
            more |= last < self.topic_range.tracked_until;
            set.extend(applied(connection, group.subscription_id, beyond, last)?.iter());
        }
        let set = Ranges::covering(set);
        let (set, unset) = (done.without(&set), set.without(&done));
        Ok(Checked { touched, fresh: (from, until), leases, set, unset, more })
    }

    /// How far a step that begins at an offset may go, by the number of ranges that are set there.
    fn bounded_applied(&self, group: &SubscriptionProgress, first: i64, last: i64) -> Attempt<i64> {
        let mut statement = self.work.connection.prepare_cached(sql!(tracking.applied_crowd))?;
        let bounds = params![group.subscription_id, first, last, self.messages_max];
        let crowd: Option<i64> = statement.query_row(bounds, |row| row.get(0)).optional()?;
        Ok(crowd.map_or(last, |crowd| (crowd - 1).max(first)))
    }

    /// Changes completion records, as many as the step has left. Returns the offsets it handled, and whether these
    /// are all.
    fn apply(&mut self, layers: &[(Ranges, Masks)]) -> Attempt<(Ranges, bool)> {
        let mut statement = self.work.connection.prepare_cached(sql!(tracking.apply))?;
        let changing = segments(layers, self.topic_range.first, self.topic_range.tracked_until).into_iter();
        let (mut dealt, mut complete) = (Vec::new(), true);
        for segment in changing.filter(|segment| segment.masks != Masks::default()) {
            if self.left == 0 {
                complete = false;
                break;
            }
            let to = segment.last.min(segment.first + self.left - 1);
            complete &= to == segment.last;
            self.left -= to - segment.first + 1;
            let changed = decode::all(
                &mut statement,
                params![
                    row_key(self.topic_range.topic, segment.first),
                    row_key(self.topic_range.topic, to),
                    signed(segment.masks.one),
                    signed(segment.masks.two),
                    self.now_ms,
                ],
                |row| row.get::<_, bool>(0),
            )?;
            self.step.changed += changed.len() as u64;
            self.step.completed += changed.iter().filter(|completed| **completed).count() as u64;
            dealt.push((segment.first, to));
        }
        Ok((Ranges::covering(dealt), complete))
    }

    /// Removes groups that no longer count from pending completion records.
    fn release(&mut self) -> Attempt<()> {
        let releasing: Vec<(i32, u32, i64)> = {
            let mut statement = self.work.connection.prepare_cached(sql!(tracking.releasing))?;
            decode::all(&mut statement, [self.topic_range.topic.0], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?
        };
        for (subscription_id, bit, released_until) in releasing {
            if self.left == 0 {
                self.step.more = true;
                break;
            }
            self.release_one(subscription_id, 1 << bit, released_until)?;
        }
        Ok(())
    }

    fn release_one(&mut self, subscription_id: i32, mask: u64, released_until: i64) -> Attempt<()> {
        let connection = self.work.connection;
        let after = row_key(self.topic_range.topic, released_until);
        let end = row_key(self.topic_range.topic, self.topic_range.tracked_until);
        let (pending, bound): (i64, Option<i64>) =
            connection
                .prepare_cached(sql!(tracking.release_bound))?
                .query_row(params![after, end, self.left], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let whole = pending < self.left;
        let until = if whole { end } else { bound.unwrap_or(end) };
        let mut statement = connection.prepare_cached(sql!(tracking.release))?;
        let changed = decode::all(&mut statement, params![after, until, signed(mask), self.now_ms], |row| {
            row.get::<_, bool>(0)
        })?;
        self.step.changed += changed.len() as u64;
        self.step.released += changed.len() as u64;
        self.step.completed += changed.iter().filter(|completed| **completed).count() as u64;
        self.left -= pending;
        self.step.more |= !whole;
        let released_until = (!whole).then(|| offset_of(until));
        connection
            .prepare_cached(sql!(tracking.release_begin))?
            .execute(params![subscription_id, released_until])?;
        Ok(())
    }

    /// Stores the progress.
    fn finish(mut self) -> Attempt<TrackStep> {
        let topic_range = &self.topic_range;
        let mut forget = self.work.connection.prepare_cached(sql!(tracking.applied_below))?;
        for group in &self.groups {
            let bounds = params![group.subscription_id, topic_range.first, self.messages_max];
            self.step.more |= forget.execute(bounds)? == self.messages_max as usize;
        }
        let change_until = topic_range.change_until.filter(|until| topic_range.tracked_until < *until);
        self.work.connection.prepare_cached(sql!(tracking.progress))?.execute(params![
            topic_range.topic.0,
            topic_range.tracked_until,
            change_until
        ])?;
        self.step.more |= topic_range.tracked_until < topic_range.head;
        Ok(self.step)
    }
}

/// Stores the handled changes of a group: what is set now, how far, and the leases that are still to end.
fn keep(
    work: &Work<'_>,
    group: &SubscriptionProgress,
    checked: Checked,
    dealt: &Ranges,
    first: i64,
) -> Attempt<()> {
    let (connection, subscription_id) = (work.connection, group.subscription_id);
    let changed = checked.set.union(&checked.unset);
    for (first, last) in changed.intersection(dealt).iter() {
        set_applied(connection, subscription_id, (first, last), &checked.set)?;
    }
    let undealt = changed.without(dealt);
    let applied_until = undealt
        .within(checked.fresh.0, OFFSET_MAX)
        .first()
        .map_or(checked.fresh.1, |undealt| checked.fresh.1.min(undealt - 1))
        .max(checked.fresh.0 - 1);
    // Before the rows that led here are removed: a lease under the token of one of them is recorded again.
    let mut untouch = connection.prepare_cached(sql!(tracking.untouch))?;
    for (touched, token, last) in checked.touched {
        if touched > applied_until || undealt.within(touched.max(first), last).is_empty() {
            untouch.execute(params![subscription_id, touched, token])?;
        }
    }
    let mut touch = connection.prepare_cached(sql!(tracking.touch))?;
    for lease in checked.leases.iter().filter(|lease| lease.first <= applied_until) {
        touch.execute(params![subscription_id, lease.first, lease.token, lease.last])?;
    }
    if applied_until != group.applied_until {
        connection
            .prepare_cached(sql!(tracking.applied_until))?
            .execute(params![subscription_id, applied_until])?;
    }
    Ok(())
}

/// The offsets of a range whose completion records are for a subscription, and those of them that it has done.
fn as_layers(progress: &SubscriptionProgress, done: &Ranges, first: i64, last: i64) -> [(Ranges, Masks); 2] {
    let (required, mask) = (progress.required(done, first, last), progress.mask());
    let completed = required.intersection(done);
    [(required, Masks { one: mask, two: 0 }), (completed, Masks { one: 0, two: mask })]
}

/// Layers for messages without completion records: the groups that their records will be for, and the groups that
/// have done them.
pub(super) fn layers_of(
    connection: &Connection,
    topic: TopicId,
    first: i64,
    last: i64,
) -> Attempt<Vec<(Ranges, Masks)>> {
    let mut layers = Vec::new();
    for progress in SubscriptionProgress::all(connection, topic)?.iter().filter(|progress| progress.counts) {
        let done = progress.done(connection, first, last)?;
        layers.extend(as_layers(progress, &done, first, last));
    }
    Ok(layers)
}

/// Removes the lowest completion records of a topic that keeps none any more; the bits are released with the last of
/// them.
fn remove_records(work: &Work<'_>, topic_range: &TopicRange, messages_max: u32) -> Attempt<TrackStep> {
    if topic_range.change_until.is_none() {
        return Ok(TrackStep::default());
    }
    let bounds = params![row_key(topic_range.topic, 0), row_key(topic_range.topic, OFFSET_MAX), messages_max];
    let mut statement = work.connection.prepare_cached(sql!(tracking.remove))?;
    let removed = statement.execute(bounds)? as u64;
    let more = removed == u64::from(messages_max);
    if !more {
        forget_bits(work.connection, topic_range.topic)?;
    }
    Ok(TrackStep { removed, more, ..TrackStep::default() })
}
