//! A tick queue in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Faults, lock};
use crate::contracts::TickData;
use crate::error::{Error, ErrorCode, Result};
use crate::resource::{Claim, TickClaims, TickQueueReader, Verdict};

/// Ticks in memory. Clones are readers of the same queue.
#[derive(Clone, Default)]
pub struct MemoryQueue {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    /// Of reads.
    pub reads: Faults,
    /// Of acks.
    pub acks: Faults,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(TickData, u32)>,
    held: u64,
    acked: Vec<i64>,
    buried: Vec<(i64, String)>,
    first_at: Option<Instant>,
}

impl MemoryQueue {
    /// Adds ticks.
    pub fn push(&self, ticks: impl IntoIterator<Item = TickData>) {
        lock(&self.state).waiting.extend(ticks.into_iter().map(|tick| (tick, 1)));
        self.changed.notify_waiters();
    }

    /// The numbers of acked ticks, in the order of the acks.
    pub fn acked(&self) -> Vec<i64> {
        lock(&self.state).acked.clone()
    }

    /// The numbers of ticks that became dead letters, with the reasons.
    pub fn buried(&self) -> Vec<(i64, String)> {
        lock(&self.state).buried.clone()
    }

    /// Ticks that are not settled.
    pub fn unsettled(&self) -> u64 {
        let state = lock(&self.state);
        state.waiting.len() as u64 + state.held
    }

    /// Waits until so many ticks are buried.
    pub async fn until_buried(&self, count: usize) {
        super::topic::until("ticks to be buried", &self.changed, || self.buried().len() >= count).await;
    }

    /// Waits until so many ticks are acked.
    pub async fn until_acked(&self, count: usize) {
        super::topic::until("ticks to be acked", &self.changed, || self.acked().len() >= count).await;
    }
}

#[async_trait]
impl TickQueueReader for MemoryQueue {
    async fn next(&mut self, max: usize, at_most: Duration) -> Result<Option<TickClaims>> {
        self.reads.meet().await?;
        let begun = Instant::now();
        loop {
            let changed = self.changed.notified();
            let deadline = {
                let mut state = lock(&self.state);
                let first_at = match state.waiting.is_empty() {
                    true => None,
                    false => Some(*state.first_at.get_or_insert_with(Instant::now)),
                };
                let deadline = first_at.unwrap_or(begun) + at_most;
                if state.waiting.len() >= max || Instant::now() >= deadline {
                    let count = state.waiting.len().min(max);
                    let taken: Vec<_> = state.waiting.drain(..count).collect();
                    state.held += count as u64;
                    state.first_at = None;
                    drop(state);
                    let (ticks, attempts) = taken.iter().cloned().unzip();
                    let claim = Box::new(MemoryClaim { queue: self.clone(), ticks: taken });
                    return Ok((count > 0).then_some(TickClaims { ticks, attempts, claim }));
                }
                deadline
            };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    async fn lag(&self) -> Result<u64> {
        Ok(self.unsettled())
    }

    async fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct MemoryClaim {
    queue: MemoryQueue,
    /// Those that are not settled, with their attempts.
    ticks: Vec<(TickData, u32)>,
}

#[async_trait]
impl Claim for MemoryClaim {
    async fn settle(mut self: Box<Self>, others: Vec<(usize, Verdict)>) -> Result<()> {
        if let Err(error) = self.queue.acks.meet().await {
            return Err(Error::transient(ErrorCode::AckFailed, error));
        }
        let mut others: HashMap<usize, Verdict> = others.into_iter().collect();
        let mut state = lock(&self.queue.state);
        for (at, (tick, attempt)) in std::mem::take(&mut self.ticks).into_iter().enumerate() {
            state.held -= 1;
            match others.remove(&at).unwrap_or(Verdict::Done) {
                Verdict::Done => state.acked.push(tick.tick_number),
                Verdict::Retry(_) => state.waiting.push_back((tick, attempt + 1)),
                Verdict::GiveBack => state.waiting.push_back((tick, attempt)),
                Verdict::Bury(reason) => state.buried.push((tick.tick_number, reason)),
            }
        }
        drop(state);
        self.queue.changed.notify_waiters();
        Ok(())
    }
}

impl Drop for MemoryClaim {
    fn drop(&mut self) {
        let mut state = lock(&self.queue.state);
        state.held -= self.ticks.len() as u64;
        for tick in self.ticks.drain(..).rev() {
            state.waiting.push_front(tick);
        }
        drop(state);
        self.queue.changed.notify_waiters();
    }
}
