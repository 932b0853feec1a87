//! One bounded step of bringing a topic's records up to date.

use rusqlite::params;

use super::{forget_bits, load_applied, signed, store_applied};
use crate::lease::ranges::{Masks, Ranges, segments};
use crate::store::TrackStep;
use crate::store::sqlite::fault::Attempt;
use crate::store::sqlite::standing::{Extent, Standing};
use crate::store::sqlite::work::Work;
use crate::store::sqlite::{OFFSET_MAX, decode, offset_of, row_key};
use crate::topic::TopicId;

/// Brings the records of a topic up to date, or removes those that a change of mode has left: see
/// [`crate::store::Upkeep::track`].
pub(in crate::store::sqlite) fn track(
    work: &mut Work<'_>,
    topic: TopicId,
    messages_max: u32,
) -> Attempt<TrackStep> {
    let extent = Extent::load(work.connection, topic)?;
    if !extent.counts_references() {
        return remove_records(work, &extent, messages_max);
    }
    let groups = Standing::all(work.connection, topic)?
        .into_iter()
        .filter(|standing| standing.counts && standing.bit.is_some())
        .map(|standing| Group::load(work, standing))
        .collect::<Attempt<Vec<Group>>>()?;
    let (left, now_ms, step) = (i64::from(messages_max), work.now_ms(), TrackStep::default());
    let mut tracking = Tracking { work, extent, groups, left, now_ms, step };
    tracking.record_new()?;
    tracking.apply_changes()?;
    tracking.release()?;
    tracking.finish()
}

/// A counting subscription, and what of it the records show.
struct Group {
    standing: Standing,
    applied: Ranges,
}

impl Group {
    fn load(work: &Work<'_>, standing: Standing) -> Attempt<Self> {
        let applied = load_applied(work.connection, standing.subscription_id)?;
        Ok(Group { standing, applied })
    }
}

/// A step under way.
struct Tracking<'w, 'c> {
    work: &'w mut Work<'c>,
    extent: Extent,
    groups: Vec<Group>,
    /// Messages it may still touch.
    left: i64,
    now_ms: i64,
    step: TrackStep,
}

impl Tracking<'_, '_> {
    /// Makes the records of messages that have none, as everything stands now.
    fn record_new(&mut self) -> Attempt<()> {
        let first = self.extent.tracked_until.max(self.extent.first - 1) + 1;
        let last = self.extent.head.min(first + self.left - 1);
        if first <= last {
            let layers: Vec<(Ranges, Masks)> = self.groups.iter().flat_map(Group::as_layers).collect();
            let mut statement = self.work.connection.prepare_cached(sql!("track/record.sql"))?;
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
            for group in &mut self.groups {
                group.applied = group.applied.union(&group.standing.done.within(first, last));
            }
            self.left -= last - first + 1;
        }
        self.extent.tracked_until = self.extent.tracked_until.max(last);
        Ok(())
    }

    /// Sets what groups have done since, and unsets what comes to them again: one update per message for all groups.
    fn apply_changes(&mut self) -> Attempt<()> {
        let (first, last) = (self.extent.first, self.extent.tracked_until);
        let mut layers = Vec::with_capacity(self.groups.len() * 2);
        for group in &mut self.groups {
            let done = group.standing.done.within(1, last);
            // What was removed has no record to be changed.
            group.applied = group.applied.within(first, last).union(&done.within(1, first - 1));
            let mask = group.standing.mask();
            layers.push((done.without(&group.applied), Masks { one: mask, two: 0 }));
            layers.push((group.applied.without(&done), Masks { one: 0, two: mask }));
        }
        let mut dealt = Vec::new();
        let mut statement = self.work.connection.prepare_cached(sql!("track/apply.sql"))?;
        let changing = segments(&layers, first, last).into_iter();
        for segment in changing.filter(|segment| segment.masks != Masks::default()) {
            if self.left == 0 {
                self.step.more = true;
                break;
            }
            let to = segment.last.min(segment.first + self.left - 1);
            self.step.more |= to < segment.last;
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
        let dealt = Ranges::covering(dealt);
        for (group, changed) in self.groups.iter_mut().zip(layers.chunks(2)) {
            let (set, unset) = (changed[0].0.intersection(&dealt), changed[1].0.intersection(&dealt));
            group.applied = group.applied.union(&set).without(&unset);
        }
        Ok(())
    }

    /// Takes groups that do not count any more out of pending records.
    fn release(&mut self) -> Attempt<()> {
        let releasing: Vec<(i32, u32, i64)> = {
            let mut statement = self.work.connection.prepare_cached(sql!("track/releasing.sql"))?;
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
            .prepare_cached(sql!("track/release_bound.sql"))?
            .query_row(params![after, end, self.left], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let whole = pending < self.left;
        let until = if whole { end } else { bound.unwrap_or(end) };
        let mut statement = connection.prepare_cached(sql!("track/release.sql"))?;
        let changed = decode::all(&mut statement, params![after, until, signed(mask), self.now_ms], |row| {
            row.get::<_, bool>(0)
        })?;
        self.step.changed += changed.len() as u64;
        self.step.completed += changed.iter().filter(|completed| **completed).count() as u64;
        self.left -= pending;
        self.step.more |= !whole;
        let released_until = (!whole).then(|| offset_of(until));
        connection
            .prepare_cached(sql!("track/release_begin.sql"))?
            .execute(params![subscription_id, released_until])?;
        Ok(())
    }

    /// Stores how far it is.
    fn finish(mut self) -> Attempt<TrackStep> {
        for group in &self.groups {
            store_applied(self.work.connection, group.standing.subscription_id, &group.applied)?;
        }
        let extent = &self.extent;
        let change_until = extent.change_until.filter(|until| extent.tracked_until < *until);
        self.work.connection.prepare_cached(sql!("track/progress.sql"))?.execute(params![
            extent.topic.0,
            extent.tracked_until,
            change_until
        ])?;
        self.step.more |= extent.tracked_until < extent.head;
        Ok(self.step)
    }
}

impl Group {
    /// Whom records are for, and who of them is done.
    fn as_layers(&self) -> [(Ranges, Masks); 2] {
        let (required, mask) = (self.standing.required(), self.standing.mask());
        let completed = required.intersection(&self.standing.done);
        [(required, Masks { one: mask, two: 0 }), (completed, Masks { one: 0, two: mask })]
    }
}

/// Layers of whom the records of a topic that are not made yet will be for, and who of them is done.
pub(super) fn layers_of(standings: Vec<Standing>) -> Vec<(Ranges, Masks)> {
    let counting = standings.into_iter().filter(|standing| standing.counts);
    let groups = counting.map(|standing| Group { standing, applied: Ranges::default() });
    groups.flat_map(|group| group.as_layers()).collect()
}

/// Removes the lowest records of a topic that keeps none any more; with the last of them go the bits.
fn remove_records(work: &Work<'_>, extent: &Extent, messages_max: u32) -> Attempt<TrackStep> {
    if extent.change_until.is_none() {
        return Ok(TrackStep::default());
    }
    let bounds = params![row_key(extent.topic, 0), row_key(extent.topic, OFFSET_MAX), messages_max];
    let mut statement = work.connection.prepare_cached(sql!("track/remove.sql"))?;
    let removed = statement.execute(bounds)? as u64;
    let more = removed == u64::from(messages_max);
    if !more {
        forget_bits(work.connection, extent.topic)?;
    }
    Ok(TrackStep { removed, more, ..TrackStep::default() })
}
