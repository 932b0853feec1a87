//! One held lease: which of its messages are done, the outcomes of the others, and the settlement that follows.
//!
//! Workers finish messages in any order and from any thread, so completion is a bitmap of atomics; everything rarer is
//! behind a lock. An offset is named in at most one settlement: a range settled early is marked, because the store
//! refuses a settlement that names an offset no longer held under the token.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::leases::GroupLeases;
use crate::handler::Messages;
use crate::lease::{Lease, LeaseToken, OffsetRange};
use crate::message::Offset;
use crate::settle::{Outcome, Parts, RetryPolicy, Settlement};

/// A lease and the outcomes of its messages so far.
#[derive(Debug)]
pub(crate) struct LeaseWork {
    pub(crate) lease: Lease,
    /// The leases of its group.
    pub(crate) of: Arc<GroupLeases>,
    /// How long an extension lasts: as long as the lease was claimed for, even if the setting was altered since.
    pub(crate) lease_for: Duration,
    /// The retry policy of its messages; one for the whole lease, so that the order of a key does not depend on when it
    /// is altered.
    pub(crate) policy: RetryPolicy,
    /// When it was claimed, and how long after that it was last extended, in microseconds. Both are measured before the
    /// call, so that a lease is never assumed to last longer than in the store.
    claimed_at: Instant,
    extended_us: AtomicU64,
    /// Shared with handlers, which can check it.
    pub(crate) lost: Arc<AtomicBool>,
    /// The messages for workers, until they have them: a held lease keeps no payload that was handled.
    slices: Mutex<Vec<Messages>>,
    /// Offsets handed to workers. Other offsets do not exist, belong to another lane, or were not read: they are
    /// settled with the last settlement at the latest.
    delivered: Bits,
    messages: usize,
    has_unread: bool,
    unfinished: AtomicUsize,
    /// Held while a part is settled: of two concurrent settlements each would find the other's rows gone, and take the
    /// lease for lost.
    pub(crate) settling: tokio::sync::Mutex<()>,
    /// A settlement of it did not reach the store.
    pub(crate) unsettled: AtomicBool,
    /// Set when the store's history changed: an extension has to verify that the store still has the lease.
    pub(crate) doubted: AtomicBool,
    done: Bits,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Outcomes other than a plain ack, by offset.
    exceptions: BTreeMap<i64, Outcome>,
    /// Offsets named in a settlement already; made with the first early one.
    settled: Option<Vec<bool>>,
    /// The last settlement was made: nothing more of this lease may be settled.
    closed: bool,
}

/// Which offsets a settlement covers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cover {
    /// Everything; every message is done.
    All,
    /// What is done so far; the rest stays leased.
    Done,
    /// Everything; what is not done is released.
    AllGivingBack,
}

impl LeaseWork {
    /// `claimed_at` is when its time began at the latest. `parked` are messages that wait behind an older one of their
    /// key: not handled.
    pub(crate) fn new(
        lease: Lease,
        of: Arc<GroupLeases>,
        policy: RetryPolicy,
        lease_for: Duration,
        slices: Vec<Messages>,
        parked: Vec<(Offset, Outcome)>,
        claimed_at: Instant,
    ) -> Self {
        let span = usize::try_from(lease.range.span()).expect("a lease's span fits memory");
        let messages = slices.iter().map(|slice| slice.len()).sum();
        let work = LeaseWork {
            policy,
            of,
            lease_for,
            claimed_at,
            extended_us: AtomicU64::new(0),
            lost: Arc::default(),
            unfinished: AtomicUsize::new(messages),
            messages,
            has_unread: false,
            delivered: Bits::new(span),
            slices: Mutex::default(),
            settling: tokio::sync::Mutex::default(),
            unsettled: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
            done: Bits::new(span),
            state: Mutex::new(State {
                exceptions: parked.into_iter().map(|(offset, outcome)| (offset.0, outcome)).collect(),
                settled: None,
                closed: false,
            }),
            lease,
        };
        slices.iter().flatten().for_each(|message| work.delivered.set(work.position(message.offset)));
        LeaseWork { slices: Mutex::new(slices), ..work }
    }

    /// The end of its range was not read, for lack of room: it is released with the next settlement.
    pub(crate) fn leave_unread(&mut self, unread: OffsetRange) {
        self.has_unread = true;
        let mut state = self.state.lock().expect("no panic while held");
        for offset in unread.first.0..=unread.last.0 {
            state.exceptions.insert(offset, Outcome::Release);
            self.done.set(self.position(Offset(offset)));
        }
    }

    pub(crate) fn token(&self) -> LeaseToken {
        self.lease.token
    }

    /// How many messages it has for workers.
    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    /// Whether a part of its range was not read.
    pub(crate) fn has_unread(&self) -> bool {
        self.has_unread
    }

    pub(crate) fn take_slices(&self) -> Vec<Messages> {
        std::mem::take(&mut *self.slices.lock().expect("no panic while held"))
    }

    /// Whether none of its messages may be started any more: it was lost, or its time is over without an extension.
    /// Another owner may hold its messages.
    pub(crate) fn is_lost(&self, now: Instant) -> bool {
        self.lost.load(Ordering::Relaxed) || (!self.lease_for.is_zero() && self.age(now) >= self.lease_for)
    }

    /// Whether it was handed over so late that it might expire before its first extension.
    pub(crate) fn came_late(&self) -> bool {
        !self.lease_for.is_zero() && self.age(Instant::now()) >= self.lease_for / 3 * 2
    }

    /// How long ago it was claimed or last extended.
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.claimed_at)
            .saturating_sub(Duration::from_micros(self.extended_us.load(Ordering::Relaxed)))
    }

    /// Records the outcome of one message. True if it was the last one: then the lease is to be settled.
    pub(crate) fn finish(&self, offset: Offset, outcome: Outcome) -> bool {
        if outcome != Outcome::Ack {
            self.state.lock().expect("no panic while held").exceptions.insert(offset.0, outcome);
        }
        self.done.set(self.position(offset));
        self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Records the outcomes of several messages at once; those without an outcome are acked. True if they were the last
    /// ones.
    pub(crate) fn finish_all(&self, messages: &Messages, outcomes: Vec<(Offset, Outcome)>) -> bool {
        if !outcomes.is_empty() {
            let mut state = self.state.lock().expect("no panic while held");
            state.exceptions.extend(outcomes.into_iter().map(|(offset, outcome)| (offset.0, outcome)));
        }
        for message in messages {
            self.done.set(self.position(message.offset));
        }
        self.unfinished.fetch_sub(messages.len(), Ordering::AcqRel) == messages.len()
    }

    /// Records messages whose settlement committed in a transaction of its own. True if they were the last ones.
    pub(crate) fn finish_settled(&self, messages: &Messages, settlement: &Settlement) -> bool {
        {
            let mut state = self.state.lock().expect("no panic while held");
            let settled = state.settled.get_or_insert_with(|| vec![false; self.done.len()]);
            match &settlement.parts {
                Parts::AckAll => settled.fill(true),
                Parts::Each(parts) => {
                    for (range, _) in parts {
                        settled[self.position(range.first)..=self.position(range.last)].fill(true);
                    }
                }
            }
        }
        self.finish_all(messages, Vec::new())
    }

    /// The settlement of some of the messages separately from the others, for a transaction of its own. If they are all
    /// messages of the lease, it covers the whole range.
    pub(crate) fn settle_apart(&self, messages: &Messages, outcomes: Vec<(Offset, Outcome)>) -> Settlement {
        let outcomes: BTreeMap<i64, Outcome> =
            outcomes.into_iter().map(|(offset, outcome)| (offset.0, outcome)).collect();
        let state = self.state.lock().expect("no panic while held");
        let alone = self.messages == messages.len();
        if alone && state.settled.is_none() && state.exceptions.is_empty() && outcomes.is_empty() {
            return Settlement::ack_all(&self.lease);
        }
        let mut parts = Vec::new();
        for message in messages {
            let outcome = outcomes.get(&message.offset.0).cloned().unwrap_or(Outcome::Ack);
            append(&mut parts, message.offset, outcome);
        }
        Settlement::each(&self.lease, parts)
    }

    /// The settlement of a lease all of whose messages are done; `None` if it was made already.
    pub(crate) fn settle_all(&self) -> Option<Settlement> {
        self.settlement(Cover::All)
    }

    /// Settles what is done of a lease held for longer than `held_for`, so that one slow message does not delay the
    /// acks of the others; `None` if there is nothing to settle.
    pub(crate) fn settle_done(&self, held_for: Duration) -> Option<Settlement> {
        if self.claimed_at.elapsed() < held_for || self.unfinished.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.settlement(Cover::Done)
    }

    /// An early settlement was refused and had no effect: its outcomes are to be settled again.
    pub(crate) fn unsettle(&self, settlement: Settlement) {
        let Parts::Each(parts) = settlement.parts else { return };
        let mut state = self.state.lock().expect("no panic while held");
        for (range, outcome) in parts {
            for offset in range.first.0..=range.last.0 {
                if let Some(settled) = &mut state.settled {
                    settled[self.position(Offset(offset))] = false;
                }
                if outcome != Outcome::Ack {
                    state.exceptions.insert(offset, outcome.clone());
                }
            }
        }
    }

    /// Settles what is done and releases the rest; final.
    pub(crate) fn give_back(&self) -> Option<Settlement> {
        self.settlement(Cover::AllGivingBack)
    }

    fn settlement(&self, cover: Cover) -> Option<Settlement> {
        let mut state = self.state.lock().expect("no panic while held");
        if state.closed {
            return None;
        }
        state.closed = cover != Cover::Done;
        // Only while nothing was settled separately: it would also ack that, should that settlement have failed or come
        // later.
        if cover == Cover::All && state.exceptions.is_empty() && state.settled.is_none() {
            return Some(Settlement::ack_all(&self.lease));
        }
        let mut parts: Vec<(OffsetRange, Outcome)> = Vec::new();
        let State { exceptions, settled, .. } = &mut *state;
        for position in 0..self.done.len() {
            if settled.as_ref().is_some_and(|settled| settled[position]) {
                continue;
            }
            let offset = self.lease.range.first.0 + i64::try_from(position).expect("a span fits 63 bits");
            let outcome = match cover {
                Cover::Done if !self.done.get(position) => continue,
                Cover::AllGivingBack if self.delivered.get(position) && !self.done.get(position) => {
                    Outcome::Release
                }
                Cover::All | Cover::Done | Cover::AllGivingBack => {
                    exceptions.remove(&offset).unwrap_or_else(|| self.unmentioned(position, &parts))
                }
            };
            append(&mut parts, Offset(offset), outcome);
            if cover == Cover::Done {
                settled.get_or_insert_with(|| vec![false; self.done.len()])[position] = true;
            }
        }
        (!parts.is_empty()).then(|| Settlement::each(&self.lease, parts))
    }

    /// The outcome of an offset without a recorded one: acked. Only among released messages of a lane an offset of
    /// another lane is released with them, so that one range is stored and not one per message.
    fn unmentioned(&self, position: usize, parts: &[(OffsetRange, Outcome)]) -> Outcome {
        let released = matches!(parts.last(), Some((_, Outcome::Release)));
        if self.lease.lane.is_some() && released && !self.done.get(position) {
            Outcome::Release
        } else {
            Outcome::Ack
        }
    }

    /// Whether a third of its time has passed since it was last extended, or the store's history changed. True until an
    /// extension succeeds.
    pub(crate) fn needs_extension(&self) -> bool {
        let aged = !self.lease_for.is_zero() && self.age(Instant::now()) >= self.lease_for / 3;
        (aged || self.doubted.load(Ordering::Relaxed))
            && !self.lost.load(Ordering::Relaxed)
            && !self.state.lock().expect("no panic while held").closed
    }

    /// The store extended it; the call started at `asked_at`.
    pub(crate) fn extended(&self, asked_at: Instant) {
        self.doubted.store(false, Ordering::Relaxed);
        let since = asked_at.saturating_duration_since(self.claimed_at);
        self.extended_us.store(u64::try_from(since.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn position(&self, offset: Offset) -> usize {
        debug_assert!(self.lease.range.contains(offset), "a message lies in its lease");
        usize::try_from(offset.0 - self.lease.range.first.0).expect("a message lies in its lease")
    }
}

/// Adds one offset's outcome, joining it to the last range where the outcome has no text.
fn append(parts: &mut Vec<(OffsetRange, Outcome)>, offset: Offset, outcome: Outcome) {
    if let Some((range, last)) = parts.last_mut()
        && *last == outcome
        && matches!(outcome, Outcome::Ack | Outcome::Release)
        && range.last.0 + 1 == offset.0
    {
        range.last = offset;
        return;
    }
    parts.push((OffsetRange::one(offset), outcome));
}

/// A bitmap that many threads set.
#[derive(Debug)]
struct Bits {
    words: Box<[AtomicU64]>,
    len: usize,
}

impl Bits {
    fn new(len: usize) -> Self {
        Bits { words: (0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(), len }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn set(&self, at: usize) {
        self.words[at / 64].fetch_or(1 << (at % 64), Ordering::Release);
    }

    fn get(&self, at: usize) -> bool {
        self.words[at / 64].load(Ordering::Acquire) & (1 << (at % 64)) != 0
    }
}
