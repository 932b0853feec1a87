//! Reading the ranges of leases: in several reads, some concurrently, and never more than the groups have room for.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::{StreamExt, TryStreamExt};
use tokio::time::Instant;

use super::Feed;
use crate::consumer::group::Group;
use crate::error::Result;
use crate::lease::{Lease, OffsetRange};
use crate::message::{Message, Offset};
use crate::store::FetchBound;
use crate::subscription::SubscriptionId;

/// How many reads may run concurrently: more than the processors bring no gain.
const READS_AT_ONCE: usize = 4;
/// How many offsets one read spans at most: a large claim is read in several concurrent reads.
const READ_MAX: i64 = 1_000;
impl Feed {
    /// Reads the ranges of leases that no page has, as far as their groups have room; ranges that touch are read
    /// together. What is not read is released when its lease is handed over.
    ///
    /// Memory is bounded by the room of all groups together, plus one message for each group that would get nothing
    /// else: with that one message every claim makes progress for every group, however large messages are.
    pub(super) async fn read_missing(
        &self,
        leases: &[Lease],
        groups: &HashMap<SubscriptionId, &Arc<Group>>,
    ) -> Result<()> {
        let ids: HashSet<SubscriptionId> = leases.iter().map(|lease| lease.subscription_id).collect();
        let mut missing: Vec<OffsetRange> = {
            let pages = self.pages.lock().expect("no panic while held");
            leases.iter().flat_map(|lease| pages.missing(lease.range)).collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        missing.sort();
        let started = Instant::now();
        let room = ids.iter().map(|id| groups[id].bound().bytes_max).fold(0, usize::saturating_add);
        self.read(joined(missing).into_iter().flat_map(parts).collect(), room).await?;
        for id in &ids {
            let of_group = || leases.iter().filter(|lease| lease.subscription_id == *id);
            let first = {
                let pages = self.pages.lock().expect("no panic while held");
                // Its lowest lease has waited longest: behind others that fit it would be released again and again.
                of_group().next().filter(|lease| pages.prefix(lease.range).is_none()).map(|lease| lease.range)
            };
            if let Some(range) = first {
                self.read_part(range, FetchBound::at_least_one(0)).await?;
            }
            groups[id].metrics.fetch_seconds.record(started.elapsed());
        }
        Ok(())
    }

    /// Reads ranges in order, some concurrently, until one does not fit: only that one may be read in part.
    async fn read(&self, mut reads: VecDeque<OffsetRange>, mut room: usize) -> Result<()> {
        while !reads.is_empty() {
            let now: Vec<OffsetRange> = reads.drain(..reads.len().min(READS_AT_ONCE)).collect();
            // Each gets an equal share, since none knows how much the others find.
            let bound = FetchBound::strict(room / now.len());
            let done: Vec<_> = futures_util::stream::iter(now)
                .map(|range| self.read_part(range, bound))
                .buffered(READS_AT_ONCE)
                .try_collect()
                .await?;
            room = room.saturating_sub(done.iter().map(|(bytes, _)| bytes).sum());
            if done[0].0 == 0 && done[0].1.is_some() {
                return Ok(());
            }
            // A read that did not fit its share may fit what the others left of theirs.
            for (_, left) in done.into_iter().rev() {
                left.into_iter().for_each(|left| reads.push_front(left));
            }
        }
        Ok(())
    }

    /// Reads a range as far as it fits. Returns how many bytes that was, and what is left.
    async fn read_part(&self, range: OffsetRange, bound: FetchBound) -> Result<(usize, Option<OffsetRange>)> {
        let fetched = self.store.fetch_within(self.topic, range, bound).await?;
        let (read, left) = (fetched.read_of(range), fetched.left);
        self.read.fetch_add(fetched.messages.len() as u64, Ordering::Relaxed);
        let bytes = fetched.messages.iter().map(Message::weight).sum();
        if let Some(read) = read {
            self.pages.lock().expect("no panic while held").keep(read, fetched.messages);
        }
        Ok((bytes, left))
    }
}

/// Sorted ranges, with those that overlap or touch joined.
fn joined(sorted: Vec<OffsetRange>) -> Vec<OffsetRange> {
    let mut joined: Vec<OffsetRange> = Vec::new();
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.first.0 <= last.last.0 + 1 => last.last = last.last.max(range.last),
            _ => joined.push(range),
        }
    }
    joined
}

/// A range split into reads.
fn parts(range: OffsetRange) -> impl Iterator<Item = OffsetRange> {
    let last_of = move |first: i64| Offset(range.last.0.min(first + READ_MAX - 1));
    let firsts = (range.first.0..=range.last.0).step_by(usize::try_from(READ_MAX).expect("it is small"));
    firsts.map(move |first| OffsetRange::new(Offset(first), last_of(first)))
}
