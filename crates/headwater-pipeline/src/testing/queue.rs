//! A tick queue in memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Faults, lock};
use crate::contracts::TickData;
use crate::error::{Error, ErrorCode, Result};
use crate::resource::{Claim, TickClaims, TickQueueReader};

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
    waiting: VecDeque<TickData>,
    held: u64,
    acked: Vec<i64>,
    first_at: Option<Instant>,
}

impl MemoryQueue {
    /// Adds ticks.
    pub fn push(&self, ticks: impl IntoIterator<Item = TickData>) {
        lock(&self.state).waiting.extend(ticks);
        self.changed.notify_waiters();
    }

    /// The numbers of acked ticks, in the order of the acks.
    pub fn acked(&self) -> Vec<i64> {
        lock(&self.state).acked.clone()
    }

    /// Ticks that are not acked.
    pub fn unsettled(&self) -> u64 {
        let state = lock(&self.state);
        state.waiting.len() as u64 + state.held
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
                    let ticks: Vec<_> = state.waiting.drain(..count).collect();
                    state.held += count as u64;
                    state.first_at = None;
                    let claim = MemoryClaim { queue: self.clone(), ticks: ticks.clone(), is_acked: false };
                    drop(state);
                    return Ok((count > 0).then(|| TickClaims {
                        ticks,
                        is_redelivered: false,
                        claim: Box::new(claim),
                    }));
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
    ticks: Vec<TickData>,
    is_acked: bool,
}

#[async_trait]
impl Claim for MemoryClaim {
    async fn ack(mut self: Box<Self>) -> Result<()> {
        if let Err(error) = self.queue.acks.meet().await {
            return Err(Error::transient(ErrorCode::AckFailed, error));
        }
        self.is_acked = true;
        let mut state = lock(&self.queue.state);
        state.held -= self.ticks.len() as u64;
        state.acked.extend(self.ticks.iter().map(|tick| tick.tick_number));
        drop(state);
        self.queue.changed.notify_waiters();
        Ok(())
    }
}

impl Drop for MemoryClaim {
    fn drop(&mut self) {
        if self.is_acked {
            return;
        }
        let mut state = lock(&self.queue.state);
        state.held -= self.ticks.len() as u64;
        for tick in self.ticks.drain(..).rev() {
            state.waiting.push_front(tick);
        }
        drop(state);
        self.queue.changed.notify_waiters();
    }
}
