//! The model's messages and groups.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::lease::LeaseId;
use crate::message::Offset;
use crate::store::conformance::case::Scene;
use crate::subscription::{MissedMessages, SubscriptionId, SubscriptionState};

/// A message in the model.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) created_at: Timestamp,
    /// When cleanup first ran after that: the age of an unread message counts from then.
    pub(super) noted_at: Option<Timestamp>,
    /// The groups that counted when it was published.
    pub(super) listeners: BTreeSet<SubscriptionId>,
    /// When it was first done: in offset watermark for every group that counted then; in reference counting for the
    /// listeners that still count, since a late joiner is not among the groups its record waits for.
    pub(super) done_at: Option<Timestamp>,
}

/// A group in the model.
pub(super) struct Member {
    pub(super) scene: Scene,
    pub(super) state: SubscriptionState,
    /// The group gets messages published from now on if their offset is at least this.
    pub(super) start: i64,
    /// Stored messages of the group that are not done.
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

    /// A message was removed: if the group had yet to do it, it is missed.
    pub(super) fn lose(&mut self, offset: i64) {
        if !self.pending.remove(&offset) {
            return;
        }
        let (first, last) = self.missed.range.unwrap_or((Offset(offset), Offset(offset)));
        let range = (first.min(Offset(offset)), last.max(Offset(offset)));
        self.missed = MissedMessages { count: self.missed.count + 1, range: Some(range) };
    }
}
