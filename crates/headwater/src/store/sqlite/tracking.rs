//! The accounting of subscriptions: who counts, whose bit is whose, and how a topic changes between its two modes.
//!
//! In reference counting every message has a record: whom it is for (`required`) and who is done (`completed`). Nothing is
//! counted when messages are published or acked: [`step`] derives it all from cursors and outstanding ranges. What was
//! derived is kept per subscription as `applied`, and this always holds: a pending record that is for a group is marked
//! done for it exactly if its offset is in the group's `applied`.
//!
//! A step reads only what may have changed, however many ranges wait: see [`step`].

use rusqlite::{Connection, params};

use super::fault::Attempt;
use super::standing::{Extent, Standing};
use super::work::Work;
use super::{OFFSET_MAX, backfill, decode, group, row_key};
use crate::backfill::BackfillLimits;
use crate::error::{Error, ErrorKind};
use crate::limits::TRACKED_GROUPS_MAX;
use crate::store::sqlite::ranges::Ranges;
use crate::subscription::SubscriptionState;
use crate::topic::{TopicId, Tracking};

mod records;
mod step;

pub(super) use records::records;
pub(super) use step::track;

/// A subscription was created or came back from the dead: from now on it counts. Its cursor is where it goes on.
pub(super) fn begin_accounting(work: &mut Work<'_>, subscription_id: i32) -> Attempt<()> {
    let connection = work.connection;
    let (topic, standing) = Standing::one(connection, subscription_id)?;
    let extent = Extent::load(connection, topic)?;
    group::counting_changed(work, topic)?;
    let bit = match standing.bit {
        // One that came back has kept its bit, and what is applied still tells how it stands in records that have it.
        Some(bit) => Some(bit),
        None if extent.counts_references() => {
            let done = standing.done(connection, 1, extent.tracked_until)?;
            set_applied(connection, subscription_id, (1, extent.tracked_until), &done)?;
            Some(free_bit(connection, &extent)?)
        }
        None => None,
    };
    connection.prepare_cached(super::sql!(track.begin))?.execute(params![
        subscription_id,
        bit,
        standing.floor + 1
    ])?;
    backfill::begin(connection, &extent, &standing, &BackfillLimits::default(), work.now_ms())
}

/// A subscription died or was cancelled: it no longer counts, unless it died in a queue. Pending records let go of it step
/// by step.
pub(super) fn end_accounting(work: &mut Work<'_>, subscription_id: i32) -> Attempt<()> {
    let connection = work.connection;
    let (topic, standing) = Standing::one(connection, subscription_id)?;
    if standing.counts {
        return Ok(());
    }
    let extent = Extent::load(connection, topic)?;
    group::counting_changed(work, topic)?;
    let released_until = (extent.counts_references() && standing.bit.is_some()).then_some(0);
    connection
        .prepare_cached(super::sql!(track.release_begin))?
        .execute(params![subscription_id, released_until])?;
    backfill::end(connection, subscription_id)
}

/// The topic became a queue, or pub/sub: its dead groups count from now on, or no longer.
pub(super) fn semantics_changed(work: &mut Work<'_>, topic: TopicId) -> Attempt<()> {
    let standings = Standing::all(work.connection, topic)?;
    for standing in standings.iter().filter(|standing| standing.state == SubscriptionState::Dead) {
        if standing.counts {
            begin_accounting(work, standing.subscription_id)?;
        } else {
            end_accounting(work, standing.subscription_id)?;
        }
    }
    Ok(())
}

/// Changes how a topic records completion. The records are made, or removed, by the steps of [`track`].
pub(super) fn change_tracking(work: &mut Work<'_>, topic: TopicId, target: Tracking) -> Attempt<()> {
    let connection = work.connection;
    let extent = Extent::load(connection, topic)?;
    if extent.tracking == target {
        return Ok(());
    }
    if extent.change_until.is_some() {
        let text = format!(
            "a change of tracking is under way: topic {} becomes {}; wait until it is done, see `headwater topic show`",
            extent.name,
            extent.tracking.as_str()
        );
        return Err(Error::new(ErrorKind::Conflict, text).into());
    }
    let (tracked_until, change_until) = match target {
        Tracking::ReferenceCounting => {
            give_bits(connection, &extent)?;
            backfill::complete_all(connection, topic)?;
            (extent.first - 1, (extent.head >= extent.first).then_some(extent.head))
        }
        Tracking::OffsetWatermark => (extent.tracked_until, Some(extent.tracked_until)),
    };
    connection.prepare_cached(super::sql!(track.change))?.execute(params![
        topic.0,
        target.as_str(),
        tracked_until,
        change_until
    ])?;
    if target == Tracking::OffsetWatermark && !has_records(connection, &extent)? {
        forget_bits(connection, topic)?;
    }
    Ok(())
}

fn has_records(connection: &Connection, extent: &Extent) -> Attempt<bool> {
    let mut statement = connection.prepare_cached(super::sql!(track.any))?;
    let bounds = [row_key(extent.topic, 0), row_key(extent.topic, OFFSET_MAX)];
    Ok(statement.query_row(bounds, |row| row.get(0))?)
}

/// The topic has no records any more: nobody needs a bit.
fn forget_bits(connection: &Connection, topic: TopicId) -> Attempt<()> {
    connection.prepare_cached(super::sql!(track.forget_applied))?.execute([topic.0])?;
    connection.prepare_cached(super::sql!(track.forget_touched))?.execute([topic.0])?;
    connection.prepare_cached(super::sql!(track.forget_bits))?.execute([topic.0])?;
    connection.prepare_cached(super::sql!(track.forget_change))?.execute([topic.0])?;
    Ok(())
}

/// Gives every subscription of a topic without records its bit. Records are made from where each group began.
fn give_bits(connection: &Connection, extent: &Extent) -> Attempt<()> {
    let standings = Standing::all(connection, extent.topic)?;
    if u32::try_from(standings.len()).is_ok_and(|groups| groups > TRACKED_GROUPS_MAX) {
        return Err(too_many_groups(extent).into());
    }
    let mut statement = connection.prepare_cached(super::sql!(track.begin))?;
    let mut used = 0;
    for (bit, standing) in (0..TRACKED_GROUPS_MAX).zip(&standings) {
        connection.prepare_cached(super::sql!(remove.applied))?.execute([standing.subscription_id])?;
        statement.execute(params![standing.subscription_id, bit, standing.start])?;
        used |= 1 << bit;
    }
    use_bits(connection, extent, used)
}

/// A bit for a new group. One that was never used is free; only when there is none are the records looked at, once for all
/// bits: one that no stored record carries is free again, unless a subscription still has it that may come back.
fn free_bit(connection: &Connection, extent: &Extent) -> Attempt<u32> {
    let held: Vec<(u32, bool)> = {
        let mut statement = connection.prepare_cached(super::sql!(track.bits))?;
        decode::all(&mut statement, [extent.topic.0], |row| Ok((row.get(0)?, row.get(1)?)))?
    };
    let mask = |with_cancelled: bool| {
        let kept = held.iter().filter(|(_, let_go)| with_cancelled || !let_go);
        kept.fold(0_u64, |mask, (bit, _)| mask | 1 << bit)
    };
    let mut used = extent.bits_used | mask(true);
    if used == u64::MAX && mask(false) != u64::MAX {
        let carried = carried(connection, extent)?;
        let parameters = params![extent.topic.0, signed(carried)];
        connection.prepare_cached(super::sql!(track.let_go))?.execute(parameters)?;
        used = carried | mask(false);
    }
    let bit = used.trailing_ones();
    if bit >= TRACKED_GROUPS_MAX {
        return Err(too_many_groups(extent).into());
    }
    use_bits(connection, extent, used | 1 << bit)?;
    Ok(bit)
}

/// All bits that are in records.
fn carried(connection: &Connection, extent: &Extent) -> Attempt<u64> {
    let mut statement = connection.prepare_cached(super::sql!(track.carried))?;
    let mut rows = statement.query([row_key(extent.topic, 0), row_key(extent.topic, OFFSET_MAX)])?;
    let mut carried = 0;
    while let Some(row) = rows.next()? {
        carried |= row.get::<_, i64>(0)?.cast_unsigned();
    }
    Ok(carried)
}

fn use_bits(connection: &Connection, extent: &Extent, used: u64) -> Attempt<()> {
    let parameters = params![extent.topic.0, signed(used)];
    connection.prepare_cached(super::sql!(track.use_bits))?.execute(parameters)?;
    Ok(())
}

fn too_many_groups(extent: &Extent) -> Error {
    let rule = format!(
        "topic {} would have more than the {TRACKED_GROUPS_MAX} groups that reference_counting can tell apart (those \
         cancelled count until no stored message names them); any number is possible with \
         tracking offset_watermark",
        extent.name
    );
    Error::invalid("group", rule)
}

/// A set of groups as SQLite stores it: bit 63 is the sign there.
fn signed(mask: u64) -> i64 {
    mask.cast_signed()
}

/// Of some offsets, those whose completion is set in the records of a subscription.
pub(super) fn applied(
    connection: &Connection,
    subscription_id: i32,
    first: i64,
    last: i64,
) -> Attempt<Ranges> {
    let mut statement = connection.prepare_cached(super::sql!(track.applied))?;
    let bounds = params![subscription_id, first, last];
    let ranges = decode::all(&mut statement, bounds, |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Ranges::covering(ranges).within(first, last))
}

/// Stores which of some offsets are set. Only rows that change are written, and none that lies elsewhere is read.
fn set_applied(
    connection: &Connection,
    subscription_id: i32,
    (first, last): (i64, i64),
    wanted: &Ranges,
) -> Attempt<()> {
    if first > last {
        return Ok(());
    }
    let mut statement = connection.prepare_cached(super::sql!(track.applied))?;
    // With those that touch from outside: they become one row with what is set beside them.
    let bounds = params![subscription_id, first - 1, last + 1];
    let stored: Vec<(i64, i64)> = decode::all(&mut statement, bounds, |row| Ok((row.get(0)?, row.get(1)?)))?;
    let around = Ranges::covering(stored.iter().copied()).without(&Ranges::of(first, last));
    let wanted: Vec<(i64, i64)> = around.union(&wanted.within(first, last)).iter().collect();
    let mut remove = connection.prepare_cached(super::sql!(track.applied_remove))?;
    for (first, _) in stored.iter().filter(|range| wanted.binary_search(range).is_err()) {
        remove.execute(params![subscription_id, first])?;
    }
    let mut insert = connection.prepare_cached(super::sql!(track.applied_insert))?;
    for (first, last) in wanted.iter().filter(|range| stored.binary_search(range).is_err()) {
        insert.execute(params![subscription_id, first, last])?;
    }
    Ok(())
}
