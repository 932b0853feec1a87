//! A small consumer of ordered subscriptions that follows the contract exactly, one message at a time, so that a case
//! can interleave several of them freely.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use super::case::Scene;
use crate::error::ErrorKind;
use crate::lease::{Lease, OffsetRange};
use crate::message::Message;
use crate::settle::{Outcome, Settlement};

/// A handler's verdict on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// Done.
    Done,
    /// Failed; to be retried after this many milliseconds.
    Failed(u64),
}

/// One lease with what is left of it.
struct Held {
    lease: Lease,
    todo: VecDeque<Message>,
    parts: Vec<(OffsetRange, Outcome)>,
}

/// A member of an ordered group.
pub struct LaneConsumer {
    /// Its name as an owner.
    pub owner: String,
    held: Vec<Held>,
    blocked: HashSet<String>,
}

impl LaneConsumer {
    /// A member that holds nothing.
    pub fn new(owner: &str) -> Self {
        LaneConsumer { owner: owner.to_owned(), held: Vec::new(), blocked: HashSet::new() }
    }

    /// Whether it holds leases.
    pub fn is_busy(&self) -> bool {
        !self.held.is_empty()
    }

    /// The lanes it holds.
    pub fn lanes(&self) -> HashSet<u16> {
        self.held.iter().filter_map(|held| held.lease.lane).collect()
    }

    /// Claims, if it holds nothing. Returns whether it got a lease.
    pub async fn claim(&mut self, scene: &Scene, count: u32) -> bool {
        assert!(self.held.is_empty(), "settle first");
        self.blocked.clear();
        for lease in scene.claim(&self.owner, count).await {
            self.blocked.extend(lease.blocked_keys.iter().cloned());
            let todo = scene.fetch(&lease).await.into();
            self.held.push(Held { lease, todo, parts: Vec::new() });
        }
        assert!(self.lanes().len() <= 1, "a claim gives leases of one lane: {:?}", self.lanes());
        !self.held.is_empty()
    }

    /// Takes the next message and passes it to `handle` if it belongs to this member's lane. Returns false when none
    /// is left.
    pub fn handle_next(&mut self, lanes: u16, mut handle: impl FnMut(&Message, &Lease) -> Handled) -> bool {
        for held in &mut self.held {
            let Some(message) = held.todo.pop_front() else { continue };
            let lane = held.lease.lane.expect("an ordered lease has a lane");
            let key = message.key.clone();
            let outcome = if message.lane(lanes) != lane {
                Outcome::Ack
            } else if let Some(key) = key.clone().filter(|key| self.blocked.contains(key)) {
                Outcome::Park { key }
            } else {
                match handle(&message, &held.lease) {
                    Handled::Done => Outcome::Ack,
                    Handled::Failed(after_ms) => {
                        self.blocked.extend(key.clone());
                        let after = Duration::from_millis(after_ms);
                        Outcome::Retry { after, error: "not yet".into(), key }
                    }
                }
            };
            held.parts.push((OffsetRange::one(message.offset), outcome));
            return true;
        }
        false
    }

    /// Settles everything handled so far. Returns false if a lease was lost meanwhile.
    pub async fn settle(&mut self, scene: &Scene) -> bool {
        let mut settlements = Vec::new();
        for held in self.held.drain(..) {
            assert!(held.todo.is_empty(), "handle first");
            let only_acks = held.parts.iter().all(|(_, outcome)| *outcome == Outcome::Ack);
            settlements.push(if only_acks {
                Settlement::ack_all(&held.lease)
            } else {
                Settlement::each(&held.lease, whole(held.lease.range, held.parts))
            });
        }
        let answers = scene.store.settle(&settlements).await.expect("the store settles");
        for answer in &answers {
            if let Err(error) = answer {
                assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error:?}");
            }
        }
        answers.iter().all(Result::is_ok)
    }

    /// Settles everything as done, without handling: a worker that resumes too late. Returns false if the leases were
    /// lost, as they should be by then.
    pub async fn settle_lost(&mut self, scene: &Scene) -> bool {
        self.held.iter_mut().for_each(|held| held.todo.clear());
        self.settle(scene).await
    }

    /// Drops everything, as a process that is killed does.
    pub fn crash(&mut self, new_name: &str) {
        *self = LaneConsumer::new(new_name);
    }
}

/// Adds acks for offsets without a message, so that all of the lease is settled.
fn whole(range: OffsetRange, parts: Vec<(OffsetRange, Outcome)>) -> Vec<(OffsetRange, Outcome)> {
    let mut by_offset: HashMap<_, _> = parts.into_iter().map(|(one, outcome)| (one.first, outcome)).collect();
    (range.first.0..=range.last.0)
        .map(crate::Offset)
        .map(|offset| (OffsetRange::one(offset), by_offset.remove(&offset).unwrap_or(Outcome::Ack)))
        .collect()
}
