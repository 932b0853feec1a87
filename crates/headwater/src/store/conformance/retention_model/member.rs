//! What the model of retention knows of messages and groups.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::lease::LeaseId;
use crate::message::Offset;
use crate::store::conformance::case::Scene;
use crate::subscription::{MissedMessages, SubscriptionId, SubscriptionState};

/// What the model knows of a message.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) created_at: Timestamp,
    /// When cleanup first ran after that: unread, its age is reckoned from then.
    pub(super) noted_at: Option<Timestamp>,
    /// The groups that counted when it was published.
    pub(super) listeners: BTreeSet<SubscriptionId>,
    /// When it was first done: in offset watermark for every group that counted then; in reference counting for those of
    /// its listeners that did, since a late joiner is not among the groups its record waits for.
    pub(super) done_at: Option<Timestamp>,
}

/// What the model knows of a group.
pub(super) struct Member {
    pub(super) scene: Scene,
    pub(super) state: SubscriptionState,
    /// Messages published from now on are its own from this offset on.
    pub(super) start: i64,
    /// What is stored, its own, and not done.
    pub(super) pending: BTreeSet<i64>,
    pub(super) letters: BTreeSet<i64>,
    pub(super) held: Vec<(LeaseId, BTreeSet<i64>)>,
    pub(super) missed: MissedMessages,
}

impl Member {
    pub(super) fn new(scene: Scene, start: i64, pending: BTreeSet<i64>) -> Self {
        Member {
            scene,
            state: SubscriptionState::Active,
            start,
            pending,
            letters: BTreeSet::new(),
            held: Vec::new(),
            missed: MissedMessages::default(),
        }
    }

    /// A message was removed: if it was owed, it is missed.
    pub(super) fn lose(&mut self, offset: i64) {
        if !self.pending.remove(&offset) {
            return;
        }
        let (first, last) = self.missed.range.unwrap_or((Offset(offset), Offset(offset)));
        let range = (first.min(Offset(offset)), last.max(Offset(offset)));
        self.missed = MissedMessages { count: self.missed.count + 1, range: Some(range) };
    }
}
