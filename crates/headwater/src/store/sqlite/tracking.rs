//! Reference counting: which groups count, which bit each group has, and how a topic changes between its two modes.
//! The rest of the engine calls [`start_counting`], [`stop_counting`], [`semantics_changed`], [`change_tracking`],
//! [`cursor_moved`] and the `forget…` functions here, and nothing else: it can be read without this folder.
//!
//! In reference counting every message has a completion record: the groups it is for (`required`) and the groups that
//! have done it (`completed`). Nothing is counted when messages are published or acked: [`step`] derives everything
//! from cursors and outstanding ranges. What was derived is kept per subscription as `applied`, and this invariant
//! always holds: a pending completion record that is for a group is marked as done for it exactly if its offset is in
//! the group's `applied`.
//!
//! A step reads only what may have changed, however many ranges wait: see [`step`].

use async_trait::async_trait;
use rusqlite::{Connection, params};

use self::backfill::Turn;
use super::fault::Attempt;
use super::maintenance::STEP_MESSAGES_MAX;
use super::progress::{SubscriptionProgress, TopicRange};
use super::work::{self, Kind, Work};
use super::{OFFSET_MAX, SqliteStore, decode, group, reader, row_key};
use crate::backfill::{Backfill, BackfillLimits, BackfillStep};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::OffsetRange;
use crate::limits::TRACKED_GROUPS_MAX;
use crate::name::{GroupName, Owner, TopicName};
use crate::store::sqlite::ranges::Ranges;
use crate::store::{self, Record, TrackStep};
use crate::subscription::SubscriptionState;
use crate::topic::{Progress, TopicId, Tracking};

mod backfill;
mod records;
mod step;

#[async_trait]
impl store::Tracking for SqliteStore {
    async fn track(&self, topic: TopicId, messages_max: u32) -> Result<TrackStep> {
        let messages_max = messages_max.min(STEP_MESSAGES_MAX);
        self.write(Kind::Consume, move |work| step::track(work, topic, messages_max)).await
    }

    async fn records(&self, topic: &TopicName, range: OffsetRange) -> Result<Vec<Record>> {
        let topic = topic.clone();
        self.read(move |connection| records::records(connection, &topic, range)).await
    }

    async fn backfill(
        &self,
        topic: &TopicName,
        group: &GroupName,
        limits: &BackfillLimits,
    ) -> Result<Backfill> {
        let (topic, group, limits, actor) = (topic.clone(), group.clone(), *limits, self.actor.now());
        self.write(Kind::Define, move |work| backfill::start(work, &actor, &topic, &group, &limits)).await
    }

    async fn cancel_backfill(&self, topic: &TopicName, group: &GroupName) -> Result<Backfill> {
        let (topic, group, actor) = (topic.clone(), group.clone(), self.actor.now());
        self.write(Kind::Define, move |work| backfill::turn(work, &actor, &topic, &group, Turn::Cancel)).await
    }

    async fn resume_backfill(&self, topic: &TopicName, group: &GroupName) -> Result<Backfill> {
        let (topic, group, actor) = (topic.clone(), group.clone(), self.actor.now());
        self.write(Kind::Define, move |work| backfill::turn(work, &actor, &topic, &group, Turn::Resume)).await
    }

    async fn backfills(&self) -> Result<Vec<Backfill>> {
        let now_ms = work::now_ms(&self.clock);
        self.read(move |connection| {
            reader::at_once(connection, |connection| backfill::list(connection, now_ms))
        })
        .await
    }

    async fn step_backfill(&self, worker: &Owner, messages_max: u32) -> Result<Option<BackfillStep>> {
        let (worker, messages_max) = (worker.clone(), messages_max.min(STEP_MESSAGES_MAX));
        self.write(Kind::Consume, move |work| backfill::step(work, &worker, messages_max)).await
    }
}

/// A subscription was created or resurrected: from now on it counts. It continues at its cursor.
pub(super) fn start_counting(
    work: &mut Work<'_>,
    subscription_id: i32,
    limits: &BackfillLimits,
) -> Attempt<()> {
    let connection = work.connection;
    let (topic, progress) = SubscriptionProgress::one(connection, subscription_id)?;
    let topic_range = TopicRange::load(connection, topic)?;
    group::counting_changed(work, topic)?;
    let bit = match progress.bit {
        // A resurrected subscription has kept its bit, and `applied` still shows its completion in the records that
        // have the bit.
        Some(bit) => Some(bit),
        None if topic_range.counts_references() => {
            let done = progress.done(connection, 1, topic_range.tracked_until)?;
            set_applied(connection, subscription_id, (1, topic_range.tracked_until), &done)?;
            Some(free_bit(connection, &topic_range)?)
        }
        None => None,
    };
    connection.prepare_cached(super::sql!(tracking.begin))?.execute(params![
        subscription_id,
        bit,
        progress.floor + 1
    ])?;
    backfill::begin(connection, &topic_range, &progress, limits, work.now_ms())
}

/// A subscription died or was cancelled: it no longer counts, unless it died in a queue. Its bit is removed from
/// pending completion records in steps.
pub(super) fn stop_counting(work: &mut Work<'_>, subscription_id: i32) -> Attempt<()> {
    let connection = work.connection;
    let (topic, progress) = SubscriptionProgress::one(connection, subscription_id)?;
    if progress.counts {
        return Ok(());
    }
    let topic_range = TopicRange::load(connection, topic)?;
    group::counting_changed(work, topic)?;
    let released_until = (topic_range.counts_references() && progress.bit.is_some()).then_some(0);
    connection
        .prepare_cached(super::sql!(tracking.release_begin))?
        .execute(params![subscription_id, released_until])?;
    backfill::end(connection, subscription_id)
}

/// The topic became a queue, or pub/sub: its dead groups count from now on, or no longer.
pub(super) fn semantics_changed(work: &mut Work<'_>, topic: TopicId) -> Attempt<()> {
    let all_progress = SubscriptionProgress::all(work.connection, topic)?;
    for progress in all_progress.iter().filter(|progress| progress.state == SubscriptionState::Dead) {
        if progress.counts {
            start_counting(work, progress.subscription_id, &BackfillLimits::default())?;
        } else {
            stop_counting(work, progress.subscription_id)?;
        }
    }
    Ok(())
}

/// The cursor of a subscription moved to an offset: messages from there on are for it, whatever was set in their
/// completion records.
pub(super) fn cursor_moved(connection: &Connection, subscription_id: i32, to: i64) -> Attempt<()> {
    connection.prepare_cached(super::sql!(tracking.moved))?.execute(params![subscription_id, to])?;
    Ok(())
}

/// Removes the completion records of messages that are removed.
pub(super) fn forget_messages(connection: &Connection, topic: TopicId, messages: &Ranges) -> Attempt<()> {
    let mut statement = connection.prepare_cached(super::sql!(tracking.forget_messages))?;
    for (first, last) in messages.iter() {
        statement.execute([row_key(topic, first), row_key(topic, last)])?;
    }
    Ok(())
}

/// Removes some completion records of a deleted topic, at most `rows_max`; true if there were any.
pub(super) fn forget_some_records(connection: &Connection, topic: TopicId, rows_max: u32) -> Attempt<bool> {
    let bounds = params![row_key(topic, 0), row_key(topic, OFFSET_MAX), rows_max];
    Ok(connection.prepare_cached(super::sql!(tracking.forget_some_records))?.execute(bounds)? > 0)
}

/// Removes some tracking rows of a subscription that is removed, at most `rows_max`; true if none was left.
pub(super) fn forget_some(connection: &Connection, subscription_id: i32, rows_max: u32) -> Attempt<bool> {
    for sql in [super::sql!(tracking.forget_group_applied), super::sql!(tracking.forget_group_touched)] {
        if connection.prepare_cached(sql)?.execute(params![subscription_id, rows_max])? > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes all tracking rows of a subscription that is removed.
pub(super) fn forget_subscription(connection: &Connection, subscription_id: i32) -> Attempt<()> {
    for sql in [super::sql!(tracking.forget_group_applied), super::sql!(tracking.forget_group_touched)] {
        connection.prepare_cached(sql)?.execute(params![subscription_id, i64::MAX])?;
    }
    backfill::forget(connection, subscription_id)
}

/// Changes the tracking mode of a topic. The steps of [`step::track`] create or remove the completion records.
pub(super) fn change_tracking(work: &mut Work<'_>, topic: TopicId, target: Tracking) -> Attempt<()> {
    let connection = work.connection;
    let topic_range = TopicRange::load(connection, topic)?;
    if topic_range.tracking == target {
        return Ok(());
    }
    if topic_range.change_until.is_some() {
        let text = format!(
            "a change of tracking is under way: topic {} becomes {}; wait until it is done, see `headwater topic show`",
            topic_range.name,
            topic_range.tracking.as_str()
        );
        return Err(Error::new(ErrorKind::Conflict, text).into());
    }
    let (tracked_until, change_until) = match target {
        Tracking::ReferenceCounting => {
            give_bits(connection, &topic_range)?;
            backfill::complete_all(connection, topic)?;
            (topic_range.first - 1, (topic_range.head >= topic_range.first).then_some(topic_range.head))
        }
        Tracking::OffsetWatermark => (topic_range.tracked_until, Some(topic_range.tracked_until)),
    };
    connection.prepare_cached(super::sql!(tracking.change))?.execute(params![
        topic.0,
        target.as_str(),
        tracked_until,
        change_until
    ])?;
    if target == Tracking::OffsetWatermark && !has_records(connection, &topic_range)? {
        forget_bits(connection, topic)?;
    }
    Ok(())
}

fn has_records(connection: &Connection, topic_range: &TopicRange) -> Attempt<bool> {
    let mut statement = connection.prepare_cached(super::sql!(tracking.any))?;
    let bounds = [row_key(topic_range.topic, 0), row_key(topic_range.topic, OFFSET_MAX)];
    Ok(statement.query_row(bounds, |row| row.get(0))?)
}

/// The topic has no completion records any more, so no group needs a bit.
fn forget_bits(connection: &Connection, topic: TopicId) -> Attempt<()> {
    connection.prepare_cached(super::sql!(tracking.forget_applied))?.execute([topic.0])?;
    connection.prepare_cached(super::sql!(tracking.forget_touched))?.execute([topic.0])?;
    connection.prepare_cached(super::sql!(tracking.forget_bits))?.execute([topic.0])?;
    connection.prepare_cached(super::sql!(tracking.forget_change))?.execute([topic.0])?;
    Ok(())
}

/// Assigns a bit to every subscription of a topic without completion records. Records are created from where each
/// group began.
fn give_bits(connection: &Connection, topic_range: &TopicRange) -> Attempt<()> {
    let all_progress = SubscriptionProgress::all(connection, topic_range.topic)?;
    if u32::try_from(all_progress.len()).is_ok_and(|groups| groups > TRACKED_GROUPS_MAX) {
        return Err(too_many_groups(topic_range).into());
    }
    let mut statement = connection.prepare_cached(super::sql!(tracking.begin))?;
    let mut used = 0;
    for (bit, progress) in (0..TRACKED_GROUPS_MAX).zip(&all_progress) {
        let parameters = params![progress.subscription_id, i64::MAX];
        connection.prepare_cached(super::sql!(tracking.forget_group_applied))?.execute(parameters)?;
        statement.execute(params![progress.subscription_id, bit, progress.start])?;
        used |= 1 << bit;
    }
    use_bits(connection, topic_range, used)
}

/// A bit for a new group. A bit that was never used is free. Only if there is none are the completion records read,
/// once for all bits: a bit that no stored record has is free again, unless it belongs to a subscription that may
/// come back.
fn free_bit(connection: &Connection, topic_range: &TopicRange) -> Attempt<u32> {
    let held: Vec<(u32, bool)> = {
        let mut statement = connection.prepare_cached(super::sql!(tracking.bits))?;
        decode::all(&mut statement, [topic_range.topic.0], |row| Ok((row.get(0)?, row.get(1)?)))?
    };
    let mask = |with_cancelled: bool| {
        let kept = held.iter().filter(|(_, released)| with_cancelled || !released);
        kept.fold(0_u64, |mask, (bit, _)| mask | 1 << bit)
    };
    let mut used = topic_range.bits_used | mask(true);
    if used == u64::MAX && mask(false) != u64::MAX {
        let carried = carried(connection, topic_range)?;
        let parameters = params![topic_range.topic.0, signed(carried)];
        connection.prepare_cached(super::sql!(tracking.free_bits))?.execute(parameters)?;
        used = carried | mask(false);
    }
    let bit = used.trailing_ones();
    if bit >= TRACKED_GROUPS_MAX {
        return Err(too_many_groups(topic_range).into());
    }
    use_bits(connection, topic_range, used | 1 << bit)?;
    Ok(bit)
}

/// All bits that are set in completion records.
fn carried(connection: &Connection, topic_range: &TopicRange) -> Attempt<u64> {
    let mut statement = connection.prepare_cached(super::sql!(tracking.carried))?;
    let mut rows =
        statement.query([row_key(topic_range.topic, 0), row_key(topic_range.topic, OFFSET_MAX)])?;
    let mut carried = 0;
    while let Some(row) = rows.next()? {
        carried |= row.get::<_, i64>(0)?.cast_unsigned();
    }
    Ok(carried)
}

fn use_bits(connection: &Connection, topic_range: &TopicRange, used: u64) -> Attempt<()> {
    let parameters = params![topic_range.topic.0, signed(used)];
    connection.prepare_cached(super::sql!(tracking.use_bits))?.execute(parameters)?;
    Ok(())
}

fn too_many_groups(topic_range: &TopicRange) -> Error {
    let rule = format!(
        "topic {} would have more than the {TRACKED_GROUPS_MAX} groups that reference_counting can distinguish (those \
         cancelled count until no stored message names them); any number is possible with \
         tracking offset_watermark",
        topic_range.name
    );
    Error::invalid("group", rule)
}

/// A set of groups as SQLite stores it: bit 63 is the sign bit there.
fn signed(mask: u64) -> i64 {
    mask.cast_signed()
}

/// The offsets of a range whose completion is set in the completion records for a subscription.
fn applied(connection: &Connection, subscription_id: i32, first: i64, last: i64) -> Attempt<Ranges> {
    let mut statement = connection.prepare_cached(super::sql!(tracking.applied))?;
    let bounds = params![subscription_id, first, last];
    let ranges = decode::all(&mut statement, bounds, |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Ranges::covering(ranges).within(first, last))
}

/// Stores which offsets of a range are set. Only rows that change are written, and no row elsewhere is read.
fn set_applied(
    connection: &Connection,
    subscription_id: i32,
    (first, last): (i64, i64),
    wanted: &Ranges,
) -> Attempt<()> {
    if first > last {
        return Ok(());
    }
    let mut statement = connection.prepare_cached(super::sql!(tracking.applied))?;
    // With adjacent ranges outside: they become one row with what is set beside them.
    let bounds = params![subscription_id, first - 1, last + 1];
    let stored: Vec<(i64, i64)> = decode::all(&mut statement, bounds, |row| Ok((row.get(0)?, row.get(1)?)))?;
    let around = Ranges::covering(stored.iter().copied()).without(&Ranges::of(first, last));
    let wanted: Vec<(i64, i64)> = around.union(&wanted.within(first, last)).iter().collect();
    let mut remove = connection.prepare_cached(super::sql!(tracking.applied_remove))?;
    for (first, _) in stored.iter().filter(|range| wanted.binary_search(range).is_err()) {
        remove.execute(params![subscription_id, first])?;
    }
    let mut insert = connection.prepare_cached(super::sql!(tracking.applied_insert))?;
    for (first, last) in wanted.iter().filter(|range| stored.binary_search(range).is_err()) {
        insert.execute(params![subscription_id, first, last])?;
    }
    Ok(())
}

impl SubscriptionProgress {
    /// The offsets of a range whose completion records are for it: from where it began on, and whatever it has not
    /// done.
    fn required(&self, done: &Ranges, first: i64, last: i64) -> Ranges {
        Ranges::of(self.required_from.max(first), last).union(&Ranges::of(first, last).without(done))
    }

    /// Its bit as a mask; 0 without a bit.
    fn mask(&self) -> u64 {
        self.bit.map_or(0, |bit| 1 << bit)
    }
}

/// The progress of a change of mode.
pub(super) struct Change {
    pub(super) first: i64,
    pub(super) tracked_until: i64,
    pub(super) change_until: Option<i64>,
    pub(super) lowest_record: Option<i64>,
}

impl Change {
    /// Completion records are created upwards from the first message, and removed upwards too. Their removal is in
    /// progress until the bits are released, even if retention removed the last record: maintenance relies on what is
    /// shown here.
    pub(super) fn progress(&self, tracking: Tracking) -> Option<Progress> {
        let end = self.change_until?.saturating_add(1);
        let reached = match tracking {
            Tracking::ReferenceCounting => self.tracked_until.saturating_add(1),
            Tracking::OffsetWatermark => self.lowest_record.unwrap_or(end),
        };
        let total = u64::try_from(end - self.first).unwrap_or_default();
        let done = u64::try_from(reached - self.first).unwrap_or_default().min(total);
        let under_way = done < total || tracking == Tracking::OffsetWatermark;
        under_way.then_some(Progress { done, total })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_mode_shows_how_far_it_is_until_it_is_through() {
        let change = |tracked_until, change_until, lowest_record| Change {
            first: 11,
            tracked_until,
            change_until,
            lowest_record,
        };
        let (counting, watermark) = (Tracking::ReferenceCounting, Tracking::OffsetWatermark);
        let some = |done, total| Some(Progress { done, total });
        assert_eq!(change(10, Some(20), None).progress(counting), some(0, 10));
        assert_eq!(change(14, Some(20), Some(11)).progress(counting), some(4, 10));
        assert_eq!(change(20, Some(20), Some(11)).progress(counting), None);
        assert_eq!(change(20, None, Some(11)).progress(counting), None);
        assert_eq!(change(20, Some(20), Some(11)).progress(watermark), some(0, 10));
        assert_eq!(change(20, Some(20), Some(16)).progress(watermark), some(5, 10));
        assert_eq!(change(20, Some(20), None).progress(watermark), some(10, 10));
        assert_eq!(change(0, None, None).progress(watermark), None);
        assert_eq!(
            change(10, Some(10), None).progress(watermark),
            some(0, 0),
            "retention removed all of it, and the bits are still to be released"
        );
        assert_eq!(change(9, Some(10), None).progress(counting), None, "everything was removed meanwhile");
    }
}
