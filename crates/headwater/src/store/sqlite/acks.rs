//! The ack log of topics that keep one: which owner acked which offsets, and when.

use rusqlite::{Connection, params};

use super::fault::Attempt;
use super::range::Part;
use super::work::Work;
use super::{decode, log, topic};
use crate::lease::OffsetRange;
use crate::message::{Offset, lane_of};
use crate::name::{GroupName, Owner, TopicName};
use crate::store::Ack;

/// Whether any topic keeps an ack log: read once for many settlements, because almost none does.
pub(super) fn any(work: &Work<'_>) -> Attempt<bool> {
    let mut statement = work.connection.prepare_cached(super::sql!(settle.any_ack_log))?;
    Ok(statement.query_row([], |row| row.get(0))?)
}

/// Records that a range of a lease was acked, if its topic keeps an ack log.
pub(super) fn note(work: &Work<'_>, held: &Part, range: OffsetRange, now_ms: i64) -> Attempt<()> {
    work.connection.prepare_cached(super::sql!(settle.ack_log))?.execute(params![
        held.subscription_id,
        range.first.0,
        range.last.0,
        held.lane,
        held.owner,
        now_ms
    ])?;
    Ok(())
}

/// The acks of the message at an offset, oldest first.
pub(super) fn list(connection: &Connection, name: &TopicName, offset: Offset) -> Attempt<Vec<Ack>> {
    let topic = topic::get(connection, name)?.topic_id;
    let message = log::keys(connection, topic, offset.0, offset.0)?.pop();
    let mut statement = connection.prepare_cached(super::sql!(audit.acks))?;
    let found = decode::all(&mut statement, params![topic.0, offset.0], |row| {
        let (lane, lanes): (Option<u16>, u16) = (row.get(5)?, row.get(6)?);
        // A lane's range spans messages of other lanes, which other owners acked.
        let mine = match (lane, &message) {
            (Some(lane), Some((_, message_id, key))) => lane_of(key.as_deref(), *message_id, lanes) == lane,
            _ => true,
        };
        let ack = Ack {
            group: decode::parsed(row, 0, |name| GroupName::new(name))?,
            range: OffsetRange::new(Offset(row.get(1)?), Offset(row.get(2)?)),
            owner: decode::parsed(row, 3, |name| Owner::new(name))?,
            at: decode::timestamp(row, 4)?,
        };
        Ok((ack, mine))
    })?;
    Ok(found.into_iter().filter_map(|(ack, mine)| mine.then_some(ack)).collect())
}
