//! What a subscription has done, message by message: in an ordered subscription each message belongs to its own lane,
//! however slow other lanes are.

use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;

use super::fault::Attempt;
use super::progress::{Held, SubscriptionProgress, outstanding};
use super::{decode, log};
use crate::message::lane_of;
use crate::store::sqlite::ranges::Ranges;
use crate::topic::TopicId;

/// The cursors of a subscription's lanes, and what is outstanding in each. An unordered subscription has one lane
/// without a number.
pub(super) struct Lanes {
    next: HashMap<u16, i64>,
    /// By lane: first offset to last offset.
    held: HashMap<Option<u16>, BTreeMap<i64, i64>>,
}

impl Lanes {
    /// Loads what concerns the offsets of a range.
    pub(super) fn load(
        connection: &Connection,
        subscription_id: i32,
        first: i64,
        last: i64,
    ) -> Attempt<Self> {
        let mut statement = connection.prepare_cached(super::sql!(claim.lanes))?;
        let next = decode::all(&mut statement, [subscription_id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut held: HashMap<Option<u16>, BTreeMap<i64, i64>> = HashMap::new();
        for Held { lane, first, last, .. } in outstanding(connection, subscription_id, first, last)? {
            held.entry(lane).or_default().insert(first, last);
        }
        Ok(Lanes { next: next.into_iter().collect(), held })
    }

    /// Whether an offset was handed out in its lane and is not outstanding.
    pub(super) fn has_done(&self, lane: Option<u16>, offset: i64) -> bool {
        let reached = self.next.get(&lane.unwrap_or(0)).is_some_and(|next| offset < *next);
        let before = self.held.get(&lane).and_then(|held| held.range(..=offset).next_back());
        reached && before.is_none_or(|(_, last)| *last < offset)
    }

    /// Marks an offset as outstanding.
    pub(super) fn hold(&mut self, lane: Option<u16>, offset: i64) {
        self.held.entry(lane).or_default().insert(offset, offset);
    }
}

/// Of stored messages that a subscription has not done according to its slowest lane, those that it really has not
/// done.
pub(super) fn owed(
    connection: &Connection,
    topic: TopicId,
    progress: &SubscriptionProgress,
    pending: &Ranges,
) -> Attempt<Ranges> {
    let Some((first, last)) = pending.first().zip(pending.last()).filter(|_| progress.lanes > 0) else {
        return Ok(pending.clone());
    };
    let lanes = Lanes::load(connection, progress.subscription_id, first, last)?;
    let mut owed = Vec::new();
    for (first, last) in pending.iter() {
        for (offset, message_id, key) in log::keys(connection, topic, first, last)? {
            let lane = lane_of(key.as_deref(), message_id, progress.lanes);
            if !lanes.has_done(Some(lane), offset) {
                owed.push((offset, offset));
            }
        }
    }
    Ok(Ranges::covering(owed))
}
