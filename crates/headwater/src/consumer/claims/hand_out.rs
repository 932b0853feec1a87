//! What a claim brought: read, reduced to what is handed out, and released unless the caller takes it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{ClaimOptions, ClaimedMessage, Holder, Ticket};
use crate::consumer::group::Group;
use crate::error::{ErrorKind, Result};
use crate::lease::{Lease, LeaseToken, OffsetRange};
use crate::message::{Message, Offset};
use crate::settle::{Outcome, Settlement, own_messages};
use crate::store::{FetchBound, Store};

/// How long releasing leases is retried.
const GIVE_BACK_FOR: Duration = Duration::from_secs(10);
const GIVE_BACK_PAUSE: Duration = Duration::from_millis(200);

/// Leases of a claim. Dropped before they are taken, they are released: due at once, and no attempt is counted.
#[derive(Debug, Default)]
pub(super) struct Handed {
    store: Option<Arc<dyn Store>>,
    leases: Vec<Lease>,
    /// How what is held now is released.
    release: Vec<Settlement>,
}

impl Handed {
    pub(super) fn new(store: &Arc<dyn Store>, mut leases: Vec<Lease>) -> Self {
        leases.sort_by_key(|lease| lease.range);
        let whole = |lease: &Lease| Settlement::each(lease, vec![(lease.range, Outcome::Release)]);
        let release = leases.iter().map(whole).collect();
        Handed { store: Some(Arc::clone(store)), leases, release }
    }

    /// The caller has the messages, or there is none.
    pub(super) fn taken(mut self) {
        self.release.clear();
    }

    /// Reads the messages of the leases, and reduces the leases to what is handed out. A lease that was lost meanwhile is left out.
    pub(super) async fn read(
        &mut self,
        group: &Group,
        holder: Holder,
        options: &ClaimOptions,
    ) -> Result<Vec<ClaimedMessage>> {
        let Some(store) = self.store.clone() else { return Ok(Vec::new()) };
        let (messages, unread_from) = read(&store, &self.leases, options.bytes_max).await?;
        let mut room = options.messages_max as usize;
        let mut parts: Vec<Part> = Vec::with_capacity(self.leases.len());
        for lease in &self.leases {
            let part = Part::new(lease, group, &messages, unread_from, room);
            room -= part.own.len();
            parts.push(part);
        }
        let lost = settle_rest(&store, &self.leases, &mut parts).await?;
        self.release.clear();
        let mut handed_out = Vec::with_capacity(messages.len());
        for (lease, part) in self.leases.iter().zip(parts) {
            if part.own.is_empty() || lost.contains(&lease.token) {
                continue;
            }
            let count = part.own.len() as u64;
            group.metrics.delivered.add(count);
            if lease.suspect {
                group.metrics.reassigned.add(count);
            }
            let ranges = part.ranges(lease);
            let release = ranges.iter().map(|range| (*range, Outcome::Release)).collect();
            self.release.push(Settlement::each(lease, release));
            handed_out.extend(part.handed_out(lease, holder, ranges));
        }
        Ok(handed_out)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        let Some(store) = self.store.take().filter(|_| !self.release.is_empty()) else { return };
        let settlements = std::mem::take(&mut self.release);
        // Without a runtime the process ends, and the leases end at their deadlines.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(give_back(store, settlements));
        }
    }
}

/// Releases leases.
async fn give_back(store: Arc<dyn Store>, settlements: Vec<Settlement>) {
    let deadline = Instant::now() + GIVE_BACK_FOR;
    while let Err(error) = store.settle(&settlements).await {
        if !error.is_retryable() || Instant::now() > deadline {
            tracing::debug!(%error, "leases not released, they expire at their deadline");
            return;
        }
        tokio::time::sleep(GIVE_BACK_PAUSE).await;
    }
    tracing::debug!(leases = settlements.len(), "claim abandoned, leases released");
}

/// What is handed out of one lease, and what is settled before.
struct Part {
    /// Its messages, offsets rising.
    own: Vec<Message>,
    /// Settled before the hand-out.
    rest: Vec<(OffsetRange, Outcome)>,
    /// The last offset that is handed out.
    last: Offset,
}

impl Part {
    /// `messages` are those of all leases, read up to `unread_from`; at most `room` are handed out.
    fn new(
        lease: &Lease,
        group: &Group,
        messages: &[Message],
        unread_from: Option<Offset>,
        room: usize,
    ) -> Self {
        let from = messages.partition_point(|message| message.offset < lease.range.first);
        let to = messages.partition_point(|message| message.offset <= lease.range.last);
        let all = messages[from..to].to_vec();
        let (all_own, mut parked) = own_messages(lease, group.subscription.lanes, all);
        let mut end = unread_from.map_or(lease.range.last.0, |unread| lease.range.last.0.min(unread.0 - 1));
        let mut own = Vec::with_capacity(all_own.len());
        for message in all_own {
            if message.offset.0 > end {
                break;
            } else if own.len() == room {
                end = message.offset.0 - 1;
                break;
            } else if !group.guard.drops_expired(&message) {
                own.push(message);
            }
        }
        parked.retain(|(offset, _)| offset.0 <= end);
        let mut rest: Vec<(OffsetRange, Outcome)> = Vec::new();
        if lease.lane.is_some() || own.is_empty() {
            // In a lane offsets between its messages are other lanes': the lease is reduced to its messages.
            let held = own.iter().map(|message| message.offset);
            let mut kept: Vec<Offset> = held.chain(parked.iter().map(|(offset, _)| *offset)).collect();
            kept.sort_unstable();
            rest.extend(gaps(lease.range.first.0, end, &kept).map(|range| (range, Outcome::Ack)));
        }
        rest.extend(
            parked.into_iter().map(|(offset, key)| (OffsetRange::one(offset), Outcome::Park { key })),
        );
        if end < lease.range.last.0 {
            let first = Offset((end + 1).max(lease.range.first.0));
            rest.push((OffsetRange::new(first, lease.range.last), Outcome::Release));
        }
        Part { own, rest, last: Offset(end) }
    }

    /// For each message the offsets that are settled with it: without lanes, those before it that have no message, and with the last one those
    /// behind it.
    fn ranges(&self, lease: &Lease) -> Vec<OffsetRange> {
        let mut first = lease.range.first;
        let of = |(at, message): (usize, &Message)| {
            if lease.lane.is_some() {
                return OffsetRange::one(message.offset);
            }
            let last = if at + 1 == self.own.len() { self.last } else { message.offset };
            let range = OffsetRange::new(first, last);
            first = Offset(last.0 + 1);
            range
        };
        self.own.iter().enumerate().map(of).collect()
    }

    /// Its messages with their tickets.
    fn handed_out(
        self,
        lease: &Lease,
        holder: Holder,
        ranges: Vec<OffsetRange>,
    ) -> impl Iterator<Item = ClaimedMessage> {
        let lease_until = lease.deadline.expect("claimed with a lease that ends");
        let (subscription_id, token, attempt) = (lease.subscription_id, lease.token, lease.attempt);
        let lane_last = lease.lane.map(|_| self.last);
        self.own.into_iter().zip(ranges).map(move |(message, range)| {
            let offset = message.offset;
            let ticket = Ticket { subscription_id, holder, token, offset, range, attempt, lane_last };
            ClaimedMessage { ticket, message, lease_until }
        })
    }
}

/// The offsets from `first` to `last` between the kept ones, which rise.
fn gaps(first: i64, last: i64, kept: &[Offset]) -> impl Iterator<Item = OffsetRange> {
    let starts = std::iter::once(first).chain(kept.iter().map(|offset| offset.0 + 1));
    let ends = kept.iter().map(|offset| offset.0 - 1).chain(std::iter::once(last));
    let between = starts.zip(ends).filter(|(first, last)| first <= last);
    between.map(|(first, last)| OffsetRange::new(Offset(first), Offset(last)))
}

/// Settles what is not handed out; the tokens of leases that were lost meanwhile.
async fn settle_rest(
    store: &Arc<dyn Store>,
    leases: &[Lease],
    parts: &mut [Part],
) -> Result<Vec<LeaseToken>> {
    let mut tokens = Vec::new();
    let mut settlements = Vec::new();
    for (lease, part) in leases.iter().zip(parts.iter_mut()).filter(|(_, part)| !part.rest.is_empty()) {
        tokens.push(lease.token);
        settlements.push(Settlement::each(lease, std::mem::take(&mut part.rest)).normalized()?);
    }
    if settlements.is_empty() {
        return Ok(tokens);
    }
    let answers = store.settle(&settlements).await?;
    let mut lost = Vec::new();
    for (token, answer) in tokens.into_iter().zip(answers) {
        match answer {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::LeaseLost => {
                tracing::warn!(%token, "lease lost before it was handed out");
                lost.push(token);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(lost)
}

/// The messages of leases, offsets rising, and from which offset on nothing was read for lack of room. Overlapping ranges, which lanes have, are
/// read once.
async fn read(
    store: &Arc<dyn Store>,
    leases: &[Lease],
    bytes_max: usize,
) -> Result<(Vec<Message>, Option<Offset>)> {
    let Some(topic) = leases.first().map(|lease| lease.topic_id) else { return Ok((Vec::new(), None)) };
    let mut messages: Vec<Message> = Vec::new();
    let mut room = bytes_max;
    for range in joined(leases) {
        let bound = FetchBound { bytes_max: room, at_least_one: messages.is_empty() };
        let fetched = store.fetch_within(topic, range, bound).await?;
        room = room.saturating_sub(fetched.messages.iter().map(Message::weight).sum());
        messages.extend(fetched.messages);
        if let Some(left) = fetched.left {
            return Ok((messages, Some(left.first)));
        }
    }
    Ok((messages, None))
}

/// The ranges of leases, sorted, with those that overlap or touch joined.
fn joined(leases: &[Lease]) -> Vec<OffsetRange> {
    let mut joined: Vec<OffsetRange> = Vec::new();
    for range in leases.iter().map(|lease| lease.range) {
        match joined.last_mut() {
            Some(last) if range.first.0 <= last.last.0 + 1 => last.last = last.last.max(range.last),
            _ => joined.push(range),
        }
    }
    joined
}
