//! What the leases of one group in this process share, and what happens when one ends.
//!
//! Settling goes one way: a worker passes the held lease to the settler, and the settler's task reports the end here.
//! Nothing here refers to the worker or the settler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::serve_state::ServeState;
use crate::lease::Lease;
use crate::observe::metrics::GroupMetrics;
use crate::subscription::Subscription;

/// With this many unsettled leases a group claims nothing more: the database hands out leases, but accepts no
/// settlements.
pub(super) const HELD_MAX: usize = 4_000;

/// The leases of one group in this process.
#[derive(Debug)]
pub(crate) struct GroupLeases {
    pub(super) subscription: Arc<Subscription>,
    pub(super) metrics: Arc<GroupMetrics>,
    pub(super) serve_state: Arc<ServeState>,
    /// Whether the group has limits: then each lease that ends makes room.
    is_limited: bool,
    /// Leases handed to the group and not settled yet, and a notification when one is settled.
    held: AtomicUsize,
    pub(super) settled: Notify,
    /// Something was settled that may let the store hand out more, although nothing is published.
    wake_pending: AtomicBool,
    /// Notified when the group wants more messages, or none any more.
    pub(super) changed: Arc<Notify>,
}

impl GroupLeases {
    pub(super) fn new(
        subscription: Arc<Subscription>,
        metrics: Arc<GroupMetrics>,
        serve_state: Arc<ServeState>,
        is_limited: bool,
        changed: Arc<Notify>,
    ) -> Self {
        GroupLeases {
            subscription,
            metrics,
            serve_state,
            is_limited,
            held: AtomicUsize::new(0),
            settled: Notify::new(),
            wake_pending: AtomicBool::new(false),
            changed,
        }
    }

    /// One more lease is held.
    pub(super) fn take(&self) {
        self.held.fetch_add(1, Ordering::AcqRel);
    }

    /// A lease is settled or lost permanently.
    pub(super) fn forget_lease(&self, lease: &Lease) {
        let held = self.held.fetch_sub(1, Ordering::AcqRel);
        self.settled.notify_waiters();
        // A lane is free again, a suspect no longer blocks the rest, or a limit has room.
        if lease.lane.is_some() || lease.suspect || self.is_limited || held >= HELD_MAX {
            self.wake();
        }
    }

    /// How many are not settled yet.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }

    /// Makes the feed claim for the group again although nothing was published.
    pub(super) fn wake(&self) {
        self.wake_pending.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Whether the store may have more for the group although the last claim found nothing.
    pub(super) fn take_wake(&self) -> bool {
        self.wake_pending.swap(false, Ordering::AcqRel)
    }
}
