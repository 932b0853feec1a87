//! The messages of one group that wait to be handled: slices of leased messages, and the number of workers.
//!
//! Workers take single messages of the first slice by incrementing its `next`, without the lock: a slow message delays
//! its own worker and no other. The lock is taken once per slice. Whether a worker ends and whether one is started are
//! decided under that lock, so work is never left without a worker.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use super::member::Member;
use super::work::LeaseWork;
use crate::handler::{Call, HandlerGuard, Messages};
use crate::message::{Message, Offset};
use crate::settle::Outcome;

/// Messages of one lease for one member.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) work: Arc<LeaseWork>,
    pub(crate) member: Arc<Member>,
    pub(crate) messages: Messages,
    pub(crate) kind: Kind,
    /// In a lane with several members: the member of each message. They stay in one slice, because order is across
    /// members.
    pub(crate) each: Option<Vec<Arc<Member>>>,
    next: AtomicUsize,
    queued_at: Instant,
}

/// How a slice is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Each message alone, by any number of workers.
    Singles,
    /// All of it by one worker: a batch, a transaction, or messages in strict order.
    Whole,
}

/// A piece of work for a worker.
#[derive(Debug)]
pub(crate) enum Unit {
    One(Arc<Slice>, usize),
    Whole(Arc<Slice>),
}

impl Slice {
    pub(crate) fn new(work: Arc<LeaseWork>, member: Arc<Member>, messages: Messages, kind: Kind) -> Self {
        let next = AtomicUsize::new(0);
        Slice { work, member, messages, kind, each: None, next, queued_at: Instant::now() }
    }

    /// Messages of one lane for several members, in order.
    pub(crate) fn mixed(work: Arc<LeaseWork>, members: Vec<Arc<Member>>, messages: Messages) -> Self {
        let first = Arc::clone(&members[0]);
        Slice { each: Some(members), ..Slice::new(work, first, messages, Kind::Whole) }
    }

    /// The member of a message, by index.
    pub(crate) fn member_of(&self, at: usize) -> &Arc<Member> {
        self.each.as_ref().map_or(&self.member, |each| &each[at])
    }

    /// The call of a handler with a part of its messages, which have one member.
    pub(crate) fn call(&self, part: Range<usize>) -> Call<'_> {
        Call {
            member: Some(&self.member_of(part.start).identity.member),
            messages: &self.messages[part],
            attempt: self.work.lease.attempt,
        }
    }

    /// Reports the outcomes of its messages: see [`HandlerGuard::count`].
    pub(crate) fn count(&self, guard: &HandlerGuard, skipped: u64, outcomes: &[(Offset, Outcome)]) {
        guard.count(&self.messages, skipped, outcomes, &self.work.policy, |at| self.call(at..at + 1));
    }

    fn take_one(self: &Arc<Self>) -> Option<Unit> {
        // Exceeds the length by the number of workers at most, so it cannot wrap.
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        (at < self.messages.len()).then(|| Unit::One(Arc::clone(self), at))
    }

    fn left(&self) -> usize {
        self.messages.len().saturating_sub(self.next.load(Ordering::Relaxed))
    }

    /// Takes everything not started from the workers; returns the indexes.
    fn take_rest(&self) -> Range<usize> {
        let len = self.messages.len();
        self.next.swap(len, Ordering::Relaxed).min(len)..len
    }
}

#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    workers_max: usize,
    /// Messages queued and not started.
    buffered: AtomicUsize,
    /// Bytes of messages that are queued or being handled.
    bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct Inner {
    slices: VecDeque<Arc<Slice>>,
    workers: usize,
    closed: bool,
}

impl Queue {
    pub(crate) fn new(workers_max: usize) -> Self {
        Queue {
            inner: Mutex::default(),
            workers_max,
            buffered: AtomicUsize::default(),
            bytes: AtomicUsize::default(),
        }
    }

    /// Queues slices; returns how many workers to start for them.
    pub(crate) fn push(&self, slices: Vec<Slice>) -> usize {
        let mut inner = self.inner.lock().expect("no panic while held");
        let mut units = 0;
        for slice in slices {
            self.buffered.fetch_add(slice.messages.len(), Ordering::Relaxed);
            self.bytes.fetch_add(weight_of(&slice.messages), Ordering::Relaxed);
            units += if slice.kind == Kind::Singles { slice.messages.len() } else { 1 };
            inner.slices.push_back(Arc::new(slice));
        }
        // Also queued when closed: the stop of the group takes it back from there.
        if inner.closed {
            return 0;
        }
        // A few to begin with: a worker that has to wait in a handler starts another.
        inner.hire(units.min(STARTED_AT_ONCE), self.workers_max)
    }

    /// One more worker if there is work for it and room; true if the caller has to start it.
    pub(crate) fn hire_one(&self) -> bool {
        let mut inner = self.inner.lock().expect("no panic while held");
        let work = !inner.closed && inner.slices.iter().any(|slice| slice.left() > 0);
        work && inner.hire(1, self.workers_max) == 1
    }

    /// The next piece of work, or `None`: then the worker is no longer counted and must end.
    pub(crate) fn next(&self, current: &mut Option<Arc<Slice>>) -> Option<Unit> {
        if let Some(unit) = current.as_ref().and_then(Slice::take_one) {
            self.buffered.fetch_sub(1, Ordering::Relaxed);
            return Some(unit);
        }
        *current = None;
        let mut inner = self.inner.lock().expect("no panic while held");
        loop {
            let Some(first) = inner.slices.front().cloned() else {
                inner.workers -= 1;
                return None;
            };
            if first.kind == Kind::Whole {
                inner.slices.pop_front();
                self.buffered.fetch_sub(first.messages.len(), Ordering::Relaxed);
                return Some(Unit::Whole(first));
            }
            if let Some(unit) = first.take_one() {
                self.buffered.fetch_sub(1, Ordering::Relaxed);
                *current = Some(first);
                return Some(unit);
            }
            inner.slices.pop_front();
        }
    }

    /// Messages queued and not started.
    pub(crate) fn buffered(&self) -> usize {
        self.buffered.load(Ordering::Relaxed)
    }

    /// Bytes queued or being handled.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Messages were handled.
    pub(crate) fn done(&self, messages: &[Message]) {
        self.bytes.fetch_sub(weight_of(messages), Ordering::Relaxed);
    }

    /// Workers that could be started.
    pub(crate) fn free(&self) -> usize {
        self.workers_max - self.inner.lock().expect("no panic while held").workers
    }

    /// Hands out no more work; returns what was not started.
    pub(crate) fn close(&self) -> Vec<(Arc<Slice>, Messages)> {
        self.inner.lock().expect("no panic while held").closed = true;
        self.take_stale(std::time::Duration::ZERO)
    }

    /// Takes back what has waited for this long without being started, per slice.
    pub(crate) fn take_stale(&self, waited: std::time::Duration) -> Vec<(Arc<Slice>, Messages)> {
        let mut inner = self.inner.lock().expect("no panic while held");
        let mut stale = Vec::new();
        inner.slices.retain(|slice| {
            if slice.queued_at.elapsed() < waited {
                return true;
            }
            let rest = slice.take_rest();
            if !rest.is_empty() {
                self.buffered.fetch_sub(rest.len(), Ordering::Relaxed);
                let rest = slice.messages.part(rest);
                self.done(&rest);
                stale.push((Arc::clone(slice), rest));
            }
            false
        });
        stale
    }
}

impl Inner {
    fn hire(&mut self, wanted: usize, workers_max: usize) -> usize {
        let hired = wanted.min(workers_max - self.workers);
        self.workers += hired;
        hired
    }
}

fn weight_of(messages: &[Message]) -> usize {
    messages.iter().map(Message::weight).sum()
}

/// Workers started when work arrives.
const STARTED_AT_ONCE: usize = 2;
