//! What is in the buffer: pure rules about which ticks are flushed next and whose batch a flush completes.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Fate, Limits};
use crate::contracts::TickData;
use crate::error::Error;

/// Calls and their ticks.
#[derive(Debug, Default)]
pub(super) struct State {
    last_id: u64,
    /// The newest call of each message.
    current: HashMap<i64, u64>,
    /// Calls that have not ended.
    calls: usize,
    /// Calls that read their batch now.
    pub(super) reading: usize,
    /// Batches that are flushed together, in the order in which they came.
    shared: VecDeque<Entry>,
    /// Batches that are flushed at once, each with no other.
    alone: VecDeque<Entry>,
}

/// Ticks of one batch that no flush has taken yet.
#[derive(Debug)]
pub(super) struct Entry {
    id: u64,
    ticks: std::vec::IntoIter<TickData>,
    bytes: u64,
    since: Instant,
    report: oneshot::Sender<Fate>,
}

/// The ticks of one flush.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) ticks: Vec<TickData>,
    /// Batches whose last tick is in it.
    last_of: Vec<oneshot::Sender<Fate>>,
    /// The batch of which more ticks are in the buffer: the last one at most.
    begun: Option<u64>,
}

/// When a flush is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Now,
    At(Instant),
    Never,
}

impl Entry {
    pub(super) fn new(
        id: u64,
        ticks: Vec<TickData>,
        bytes: u64,
        since: Instant,
        report: oneshot::Sender<Fate>,
    ) -> Self {
        Entry { id, ticks: ticks.into_iter(), bytes, since, report }
    }
}

impl Taken {
    /// Batches with ticks in it.
    pub(super) fn batches(&self) -> usize {
        self.last_of.len() + usize::from(self.begun.is_some())
    }
}

impl State {
    pub(super) fn enter(&mut self, offset: i64) -> u64 {
        self.last_id += 1;
        self.calls += 1;
        if let Some(former) = self.current.insert(offset, self.last_id) {
            self.remove(former);
        }
        self.last_id
    }

    pub(super) fn leave(&mut self, offset: i64, id: u64) {
        self.calls -= 1;
        if self.is_current(offset, id) {
            self.current.remove(&offset);
        }
        self.remove(id);
    }

    pub(super) fn is_current(&self, offset: i64, id: u64) -> bool {
        self.current.get(&offset) == Some(&id)
    }

    pub(super) fn add(&mut self, entry: Entry, alone: bool) {
        let queue = if alone { &mut self.alone } else { &mut self.shared };
        queue.push_back(entry);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.alone.is_empty()
    }

    /// Ticks in the buffer. O(batches in it), which concurrency bounds.
    pub(super) fn ticks(&self) -> u64 {
        self.entries().map(|entry| entry.ticks.len() as u64).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.entries().map(|entry| entry.bytes).sum()
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.alone.iter().chain(&self.shared)
    }

    /// When the next flush is due.
    pub(super) fn due(&self, limits: &Limits, room_is_awaited: bool, is_closing: bool) -> Due {
        let Some(first) = self.shared.front() else {
            return if self.alone.is_empty() { Due::Never } else { Due::Now };
        };
        let ticks: usize = self.shared.iter().map(|entry| entry.ticks.len()).sum();
        let slots_are_taken = self.calls >= limits.files_max && self.reading == 0;
        let is_full = ticks >= limits.insert_batch_size || self.bytes() >= limits.bytes_max;
        if !self.alone.is_empty() || is_full || slots_are_taken || room_is_awaited || is_closing {
            return Due::Now;
        }
        Due::At(first.since + limits.flush_timeout)
    }

    /// The ticks of the next flush: from the front, `count_max` at most.
    pub(super) fn take(&mut self, count_max: usize) -> Taken {
        let mut taken = Taken { ticks: Vec::new(), last_of: Vec::new(), begun: None };
        let (queue, batches_max) = match self.alone.is_empty() {
            true => (&mut self.shared, usize::MAX),
            false => (&mut self.alone, 1),
        };
        taken.ticks.reserve_exact(count_max.min(queue.iter().map(|entry| entry.ticks.len()).sum()));
        while taken.last_of.len() < batches_max
            && let Some(first) = queue.front_mut()
        {
            let wanted = count_max - taken.ticks.len();
            if wanted < first.ticks.len() {
                taken.ticks.extend(first.ticks.by_ref().take(wanted));
                taken.begun = (wanted > 0).then_some(first.id);
                break;
            }
            let entry = queue.pop_front().expect("it was just there");
            taken.ticks.extend(entry.ticks);
            taken.last_of.push(entry.report);
        }
        taken
    }

    /// Reports the result of a flush. After a failure no tick of a batch that it touched is left.
    pub(super) fn settle(&mut self, taken: Taken, flushed: &Result<(), Error>) {
        let was_shared = taken.batches() > 1;
        let fate = match flushed {
            Ok(()) => Fate::Committed,
            Err(error) => Fate::Failed { error: error.clone(), was_shared },
        };
        if flushed.is_err()
            && let Some(begun) = taken.begun.and_then(|id| self.remove(id))
        {
            let _ = begun.report.send(fate.clone());
        }
        for report in taken.last_of {
            // An error means that the call was dropped: its message comes again.
            let _ = report.send(fate.clone());
        }
    }

    /// Gives everything back: calls see that their ticks were not flushed.
    pub(super) fn clear(&mut self) {
        self.shared.clear();
        self.alone.clear();
    }

    #[cfg(test)]
    pub(super) fn shared_since(&self, nth: usize) -> Instant {
        self.shared[nth].since
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        [&mut self.shared, &mut self.alone].into_iter().find_map(|queue| {
            let at = queue.iter().position(|entry| entry.id == id)?;
            queue.remove(at)
        })
    }
}
