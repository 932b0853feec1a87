//! Holes: offsets of a topic whose messages are missing from the log although nothing removed them.
//!
//! One writer assigns offsets without gaps, so between a topic's first offset and its head every message exists,
//! except those that retention removed out of order. A topic counts what retention removed: as long as that is no
//! more than what lies below the first offset, every hole above it is damage, such as a foreign DELETE, or an older
//! file under a newer log. If it is more, the cause of a single hole cannot be determined, and only `doctor` finds
//! the number that is missing.
//!
//! A fetch detects a hole at no cost: it gets fewer messages than it requested offsets. The hole is logged once and
//! remembered. The settlement that acks it comes from the same process and counts it as missed by its group in the
//! same transaction: so it counts once, however often the lease was handed out before. In a group with lanes every
//! lane passes the hole; lane 0 counts it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;

use super::fault::Attempt;
use super::progress::TopicRange;
use super::range::Part;
use super::work::Work;
use super::{clean, log, reader, settle};
use crate::error::Result;
use crate::lease::{LeaseId, OffsetRange};
use crate::message::Message;
use crate::settle::{Outcome, Parts, Settlement};
use crate::store::sqlite::ranges::Ranges;
use crate::store::{FetchBound, Fetched};
use crate::topic::TopicId;

/// Holes that fetches of this process have found.
#[derive(Debug, Default)]
pub(super) struct Holes {
    known: Mutex<HashMap<TopicId, Ranges>>,
    /// Whether any hole is known: almost no store has one.
    any: AtomicBool,
}

/// Holes within a lease that is about to be settled.
pub(super) struct Passed {
    /// The index of the settlement.
    at: usize,
    subscription_id: i32,
    offsets: Ranges,
}

impl Holes {
    /// Fetches, and detects holes.
    pub(super) fn fetch(
        &self,
        connection: &Connection,
        topic: TopicId,
        range: OffsetRange,
        bound: FetchBound,
    ) -> Attempt<Fetched> {
        let fetched = log::fetch(connection, topic, range, bound)?;
        if let Some(read) = fetched.read_of(range) {
            self.notice(connection, topic, read, &fetched.messages)?;
        }
        Ok(fetched)
    }

    /// Settles, and counts the holes that are acked by it.
    pub(super) fn settle(&self, work: &mut Work<'_>, settlements: &[Settlement]) -> Attempt<Vec<Result<()>>> {
        let passed = self.passed_by(work, settlements)?;
        let settled = settle::settle(work, settlements)?;
        miss(work, &passed, |at| settled[at].is_ok())?;
        Ok(settled)
    }

    /// Detects holes in the result of a fetch of the range.
    fn notice(
        &self,
        connection: &Connection,
        topic: TopicId,
        range: OffsetRange,
        messages: &[Message],
    ) -> Attempt<()> {
        // A caller may request any range.
        let span = i128::from(range.last.0) - i128::from(range.first.0) + 1;
        if messages.len() as i128 == span {
            return Ok(());
        }
        let found = reader::at_once(connection, |connection| holes_in(connection, topic, range))?;
        let mut known = self.known.lock().expect("no panic while held");
        let before = known.entry(topic).or_default();
        for (first, last) in found.without(before).iter() {
            tracing::warn!(%topic, first, last, "messages missing from the log, groups skip them");
        }
        *before = before.union(&found);
        if !found.is_empty() {
            self.any.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Holes that the settlements would ack.
    fn passed_by(&self, work: &Work<'_>, settlements: &[Settlement]) -> Attempt<Vec<Passed>> {
        let mut passed = Vec::new();
        if !self.any.load(Ordering::Acquire) {
            return Ok(passed);
        }
        for (at, settlement) in settlements.iter().enumerate() {
            let acked: Option<Ranges> = match &settlement.parts {
                Parts::AckAll => None,
                Parts::Each(parts) => {
                    let acks = parts.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Ack));
                    Some(Ranges::covering(acks.map(|(range, _)| (range.first.0, range.last.0))))
                }
            };
            passed.extend(self.under(work, at, &settlement.lease, acked.as_ref())?);
        }
        Ok(passed)
    }

    /// Holes within a lease, in the acked part of it.
    pub(super) fn under(
        &self,
        work: &Work<'_>,
        at: usize,
        id: &LeaseId,
        acked: Option<&Ranges>,
    ) -> Attempt<Option<Passed>> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(None);
        }
        let held: Vec<Part> = settle::held(work.connection, id, work.now_ms())?;
        let Some(first) = held.first().filter(|part| part.lane.is_none_or(|lane| lane == 0)) else {
            return Ok(None);
        };
        let (topic, _) = settle::topic_of(work, first.subscription_id)?;
        let known = self.known.lock().expect("no panic while held");
        let Some(holes) = known.get(&topic) else { return Ok(None) };
        let held = Ranges::covering(held.iter().map(|part| (part.first, part.last)));
        let offsets =
            acked.map_or_else(|| held.clone(), |acked| held.intersection(acked)).intersection(holes);
        let subscription_id = first.subscription_id;
        Ok((!offsets.is_empty()).then_some(Passed { at, subscription_id, offsets }))
    }
}

/// Counts the holes that settlements have acked as missed; `settled` returns which settlements were accepted.
pub(super) fn miss(work: &Work<'_>, passed: &[Passed], settled: impl Fn(usize) -> bool) -> Attempt<()> {
    for Passed { subscription_id, offsets, .. } in passed.iter().filter(|passed| settled(passed.at)) {
        let range = offsets.first().zip(offsets.last());
        clean::note_missed(work.connection, *subscription_id, offsets.count(), range)?;
    }
    Ok(())
}

/// The offsets of a range whose messages were lost to damage: read on one snapshot.
fn holes_in(connection: &Connection, topic: TopicId, range: OffsetRange) -> Attempt<Ranges> {
    let Some(topic_range) = TopicRange::find(connection, topic)? else { return Ok(Ranges::default()) };
    let (first, last) = (range.first.0.max(topic_range.first), range.last.0.min(topic_range.head));
    if topic_range.removed >= topic_range.first || first > last {
        return Ok(Ranges::default());
    }
    let stored = log::stored(connection, topic, first, last, u32::MAX)?;
    let stored = Ranges::covering(stored.into_iter().map(|offset| (offset, offset)));
    Ok(Ranges::of(first, last).without(&stored))
}
