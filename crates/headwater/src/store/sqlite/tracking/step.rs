//! One bounded step of bringing a topic's records up to date.
//!
//! What changed is found without reading what did not, although neither claims nor acks note anything. Up to
//! `applied_until` of a subscription, `applied` is what it has done, but for what is in `headwater_touched`:
//!
//! 1. Beyond it a step reads the next ranges up to the cursor, sets what they say, and moves `applied_until`. A lease it meets
//!    is noted in `headwater_touched` by its token, and met again once its row is gone or shorter: acked, retried, expired or forgotten.
//! 2. A range that begins to wait or ends waiting notes itself, by triggers: it is handed out again, comes back from the dead
//!    letters, or is forgotten.
//! 3. A cursor that is set back takes `applied_until` with it.
//!
//! An offset at or below `applied_until` is never handed out but from a waiting range (2), and a lease below it was
//! met (1) or comes from such a range; so no other offset changes. All of it is in the transaction that changes the
//! ranges: a crash takes back both or neither, and a step that is repeated finds the same.

use rusqlite::{Connection, OptionalExtension, params};

use super::{applied, forget_bits, set_applied, signed};
use crate::store::TrackStep;
use crate::store::sqlite::fault::Attempt;
use crate::store::sqlite::ranges::{Masks, Ranges, segments};
use crate::store::sqlite::standing::{self, Extent, Held, Standing, covering};
use crate::store::sqlite::work::Work;
use crate::store::sqlite::{OFFSET_MAX, decode, offset_of, row_key};
use crate::topic::TopicId;

/// Rows of `headwater_touched` that a step meets at most: each is looked up by itself.
const TOUCHED_MAX: u32 = 250;

/// Brings the records of a topic up to date, or removes those that a change of mode has left: see
/// [`crate::store::Maintenance::track`].
pub(in crate::store::sqlite) fn track(
    work: &mut Work<'_>,
    topic: TopicId,
    messages_max: u32,
) -> Attempt<TrackStep> {
    let extent = Extent::load(work.connection, topic)?;
    if !extent.counts_references() {
        return remove_records(work, &extent, messages_max);
    }
    let mut groups = Standing::all(work.connection, topic)?;
    groups.retain(|standing| standing.counts && standing.bit.is_some());
    let (left, now_ms, step) = (i64::from(messages_max), work.now_ms(), TrackStep::default());
    let mut tracking = Tracking { work, extent, groups, messages_max, left, now_ms, step };
    tracking.record_new()?;
    tracking.apply_changes()?;
    tracking.release()?;
    tracking.finish()
}

/// A step under way.
struct Tracking<'w, 'c> {
    work: &'w mut Work<'c>,
    extent: Extent,
    /// The counting subscriptions.
    groups: Vec<Standing>,
    /// Messages, and ranges of each group, that a step may touch.
    messages_max: u32,
    /// Messages it may still touch.
    left: i64,
    now_ms: i64,
    step: TrackStep,
}

/// What a step looks at of one group, and what it finds.
struct Checked {
    /// The offsets it looks at, with what is due there: rows of `headwater_touched`.
    touched: Vec<(i64, i64, i64)>,
    /// From where on, up to where: beyond `applied_until`.
    fresh: (i64, i64),
    /// Leases among them.
    leases: Vec<Held>,
    /// Done and not set, set and not done.
    set: Ranges,
    unset: Ranges,
    /// There is more than a step looks at.
    more: bool,
}

impl Tracking<'_, '_> {
    /// Makes the records of messages that have none, as everything stands now.
    fn record_new(&mut self) -> Attempt<()> {
        let connection = self.work.connection;
        let first = self.extent.tracked_until.max(self.extent.first - 1) + 1;
        let last = self.extent.head.min(first + self.left - 1);
        if first <= last {
            let mut layers = Vec::with_capacity(self.groups.len() * 2);
            for group in &self.groups {
                let done = group.done(connection, first, last)?;
                layers.extend(as_layers(group, &done, first, last));
                set_applied(connection, group.subscription_id, (first, last), &done)?;
            }
            let mut statement = connection.prepare_cached(sql!(track.record))?;
            for segment in segments(&layers, first, last) {
                let Masks { one: required, two: completed } = segment.masks;
                let completed_at_ms = (required == completed).then_some(self.now_ms);
                let made = statement.execute(params![
                    row_key(self.extent.topic, segment.first),
                    row_key(self.extent.topic, segment.last),
                    signed(required),
                    signed(completed),
                    completed_at_ms,
                ])? as u64;
                self.step.recorded += made;
                self.step.completed += completed_at_ms.map_or(0, |_| made);
            }
            self.left -= last - first + 1;
        }
        self.extent.tracked_until = self.extent.tracked_until.max(last);
        Ok(())
    }

    /// Sets what groups have done since, and unsets what comes to them again: one update per message for all groups.
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
            keep(self.work, group, checked, &dealt, self.extent.first)?;
        }
        Ok(())
    }

    /// How far what a group has done can be known.
    fn reach(&self, group: &Standing) -> i64 {
        self.extent.tracked_until.min(group.next - 1)
    }

    /// What may have changed of a group since, and what did.
    fn check(&self, group: &Standing) -> Attempt<Checked> {
        let connection = self.work.connection;
        let mut statement = connection.prepare_cached(sql!(track.touched))?;
        let touched_max = self.messages_max.min(TOUCHED_MAX);
        let bounds = params![group.subscription_id, touched_max];
        let touched: Vec<(i64, i64, i64)> =
            decode::all(&mut statement, bounds, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        // What was removed has no record to be changed.
        let from = group.applied_until.min(group.next - 1).max(self.extent.first - 1) + 1;
        let until = standing::bounded(
            connection,
            std::iter::once(group),
            from,
            self.reach(group),
            self.messages_max,
        )?;
        let until = self.bounded_applied(group, from, until)?;
        let looked = Ranges::covering(touched.iter().map(|(first, _, last)| (*first, *last)));
        let looked = looked.within(self.extent.first, from - 1).union(&Ranges::of(from, until));
        let (mut waiting, mut set) = (Vec::new(), Vec::new());
        for (first, last) in looked.iter() {
            waiting.extend(standing::waiting(connection, group.subscription_id, first, last)?);
            set.extend(applied(connection, group.subscription_id, first, last)?.iter());
        }
        let (first, last) = (looked.first().unwrap_or(0), looked.last().unwrap_or(-1));
        let leases = standing::leased(connection, group.subscription_id, first, last)?;
        let held = covering(&waiting).union(&covering(&leases));
        let done = looked.within(1, group.next - 1).without(&held);
        // Beyond the cursor nothing is done, whatever was set before the cursor was set back.
        let beyond = from.max(self.reach(group) + 1);
        let mut more = until < self.reach(group) || touched.len() == touched_max as usize;
        if until + 1 >= beyond && beyond <= self.extent.tracked_until {
            let last = self.bounded_applied(group, beyond, self.extent.tracked_until)?;
            more |= last < self.extent.tracked_until;
            set.extend(applied(connection, group.subscription_id, beyond, last)?.iter());
        }
        let set = Ranges::covering(set);
        let (set, unset) = (done.without(&set), set.without(&done));
        Ok(Checked { touched, fresh: (from, until), leases, set, unset, more })
    }

    /// Up to where a step that begins at an offset may go, by what is set there.
    fn bounded_applied(&self, group: &Standing, first: i64, last: i64) -> Attempt<i64> {
        let mut statement = self.work.connection.prepare_cached(sql!(track.applied_crowd))?;
        let bounds = params![group.subscription_id, first, last, self.messages_max];
        let crowd: Option<i64> = statement.query_row(bounds, |row| row.get(0)).optional()?;
        Ok(crowd.map_or(last, |crowd| (crowd - 1).max(first)))
    }

    /// Changes records, as many as the step has left. Answers with the offsets it dealt with, and whether that is all.
    fn apply(&mut self, layers: &[(Ranges, Masks)]) -> Attempt<(Ranges, bool)> {
        let mut statement = self.work.connection.prepare_cached(sql!(track.apply))?;
        let changing = segments(layers, self.extent.first, self.extent.tracked_until).into_iter();
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
                    row_key(self.extent.topic, segment.first),
                    row_key(self.extent.topic, to),
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

    /// Takes groups that do not count any more out of pending records.
    fn release(&mut self) -> Attempt<()> {
        let releasing: Vec<(i32, u32, i64)> = {
            let mut statement = self.work.connection.prepare_cached(sql!(track.releasing))?;
            decode::all(&mut statement, [self.extent.topic.0], |row| {
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
        let after = row_key(self.extent.topic, released_until);
        let end = row_key(self.extent.topic, self.extent.tracked_until);
        let (pending, bound): (i64, Option<i64>) = connection
            .prepare_cached(sql!(track.release_bound))?
            .query_row(params![after, end, self.left], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let whole = pending < self.left;
        let until = if whole { end } else { bound.unwrap_or(end) };
        let mut statement = connection.prepare_cached(sql!(track.release))?;
        let changed = decode::all(&mut statement, params![after, until, signed(mask), self.now_ms], |row| {
            row.get::<_, bool>(0)
        })?;
        self.step.changed += changed.len() as u64;
        self.step.completed += changed.iter().filter(|completed| **completed).count() as u64;
        self.left -= pending;
        self.step.more |= !whole;
        let released_until = (!whole).then(|| offset_of(until));
        connection
            .prepare_cached(sql!(track.release_begin))?
            .execute(params![subscription_id, released_until])?;
        Ok(())
    }

    /// Stores how far it is.
    fn finish(mut self) -> Attempt<TrackStep> {
        let extent = &self.extent;
        let mut forget = self.work.connection.prepare_cached(sql!(track.applied_below))?;
        for group in &self.groups {
            let bounds = params![group.subscription_id, extent.first, self.messages_max];
            self.step.more |= forget.execute(bounds)? == self.messages_max as usize;
        }
        let change_until = extent.change_until.filter(|until| extent.tracked_until < *until);
        self.work.connection.prepare_cached(sql!(track.progress))?.execute(params![
            extent.topic.0,
            extent.tracked_until,
            change_until
        ])?;
        self.step.more |= extent.tracked_until < extent.head;
        Ok(self.step)
    }
}

/// Stores what was dealt with of a group: what is set now, how far, and the leases that are still to end.
fn keep(work: &Work<'_>, group: &Standing, checked: Checked, dealt: &Ranges, first: i64) -> Attempt<()> {
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
    // Before the rows that led here go: a lease under the token of one of them is noted again.
    let mut untouch = connection.prepare_cached(sql!(track.untouch))?;
    for (touched, token, last) in checked.touched {
        if touched > applied_until || undealt.within(touched.max(first), last).is_empty() {
            untouch.execute(params![subscription_id, touched, token])?;
        }
    }
    let mut touch = connection.prepare_cached(sql!(track.touch))?;
    for lease in checked.leases.iter().filter(|lease| lease.first <= applied_until) {
        touch.execute(params![subscription_id, lease.first, lease.token, lease.last])?;
    }
    if applied_until != group.applied_until {
        connection
            .prepare_cached(sql!(track.applied_until))?
            .execute(params![subscription_id, applied_until])?;
    }
    Ok(())
}

/// Of some offsets, those whose records are for a subscription, and those of them that it has done.
fn as_layers(standing: &Standing, done: &Ranges, first: i64, last: i64) -> [(Ranges, Masks); 2] {
    let (required, mask) = (standing.required(done, first, last), standing.mask());
    let completed = required.intersection(done);
    [(required, Masks { one: mask, two: 0 }), (completed, Masks { one: 0, two: mask })]
}

/// Layers of whom the records of some messages that are not made yet will be for, and who of them is done.
pub(super) fn layers_of(
    connection: &Connection,
    topic: TopicId,
    first: i64,
    last: i64,
) -> Attempt<Vec<(Ranges, Masks)>> {
    let mut layers = Vec::new();
    for standing in Standing::all(connection, topic)?.iter().filter(|standing| standing.counts) {
        let done = standing.done(connection, first, last)?;
        layers.extend(as_layers(standing, &done, first, last));
    }
    Ok(layers)
}

/// Removes the lowest records of a topic that keeps none any more; with the last of them go the bits.
fn remove_records(work: &Work<'_>, extent: &Extent, messages_max: u32) -> Attempt<TrackStep> {
    if extent.change_until.is_none() {
        return Ok(TrackStep::default());
    }
    let bounds = params![row_key(extent.topic, 0), row_key(extent.topic, OFFSET_MAX), messages_max];
    let mut statement = work.connection.prepare_cached(sql!(track.remove))?;
    let removed = statement.execute(bounds)? as u64;
    let more = removed == u64::from(messages_max);
    if !more {
        forget_bits(work.connection, extent.topic)?;
    }
    Ok(TrackStep { removed, more, ..TrackStep::default() })
}
