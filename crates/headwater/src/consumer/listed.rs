//! Leases that an opened consumer has claimed and not handed out yet.
//!
//! One claim may bring many leases: each retry that is due and each lane has its own. They are handed out one after the
//! other, and the program may take long with each. Two rules keep them valid:
//!
//! - A lease is handed out with at least nine tenths of its time left: after a longer wait all leases of the list are
//!   extended first, in one call, and those that were lost are dropped.
//! - Leases that have waited for a third of their time are released, which counts as no attempt: other processes may be
//!   free. The thread for leases does that as soon as it is due, and it is checked again right before a lease is handed
//!   out, because the process may have been stopped in between. So no lease of the list ever reaches its deadline, and
//!   none is handed out past it.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::heartbeat::{HEARTBEAT_MAX, in_time};
use crate::error::{Error, ErrorKind, Result, no_panic};
use crate::lease::{Lease, LeaseId, OffsetRange};
use crate::lease_thread::LeaseThread;
use crate::message::Offset;
use crate::settle::{Outcome, Settlement};
use crate::store::Store;

/// How long leases that never expire may wait.
const UNENDING: Duration = Duration::from_secs(100);
/// How soon a failed release is retried.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// The waiting leases of one claim.
#[derive(Debug)]
pub(super) struct Listed {
    store: Arc<dyn Store>,
    leases: VecDeque<Lease>,
    lease_for: Duration,
    /// From when their time counts: before the call, so never later than in the store.
    since: Instant,
    /// Notified when leases are left in the list.
    left: Arc<Notify>,
}

impl Listed {
    /// Fills the empty list with the leases of a claim; the call started at `asked_at`.
    pub(super) fn fill(&mut self, leases: Vec<Lease>, lease_for: Duration, asked_at: Instant) {
        debug_assert!(self.leases.is_empty(), "one claim at a time");
        (self.leases, self.lease_for, self.since) = (leases.into(), lease_for, asked_at);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// The next lease, and how long an extension lasts. It may be handed out while [`Listed::is_old`] is false.
    pub(super) async fn front(&mut self) -> Result<Option<(Lease, Duration)>> {
        if self.is_old() {
            self.give_back().await?;
        } else if !self.lease_for.is_zero() && self.since.elapsed() >= self.lease_for / 10 {
            self.extend().await?;
        }
        Ok(self.leases.front().map(|lease| (lease.clone(), self.lease_for)))
    }

    /// From when the time of the next lease counts.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    pub(super) fn pop(&mut self) {
        self.leases.pop_front();
    }

    /// Releases the end of the next lease, which there was no room to read. The rest of the lease is handed out; false
    /// if it was lost meanwhile.
    pub(super) async fn cut(&mut self, unread: OffsetRange) -> Result<bool> {
        let Some(lease) = self.leases.front_mut() else { return Ok(false) };
        let back = Settlement::each(&*lease, vec![(unread, Outcome::Release)]);
        match no_panic("releasing unread messages", self.store.settle(&[back])).await?.remove(0) {
            Ok(()) => {
                lease.range.last = Offset(unread.first.0 - 1);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::LeaseLost => {
                tracing::warn!(leases = 1, "lease lost before it was handed out");
                self.pop();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn extend(&mut self) -> Result<()> {
        let ids: Vec<LeaseId> = self.leases.iter().map(Lease::id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let asked_at = Instant::now();
        let mut answers = self.store.extend(&ids, self.lease_for).await?.into_iter();
        let before = self.leases.len();
        self.leases.retain(|_| answers.next().is_some_and(|answer| answer.is_ok()));
        self.since = asked_at;
        if self.leases.len() < before {
            tracing::warn!(leases = before - self.leases.len(), "lease lost before it was handed out");
        }
        Ok(())
    }

    /// Releases all leases: due at once, not counted as an attempt. A lease that was lost meanwhile is not affected.
    pub(super) async fn give_back(&mut self) -> Result<()> {
        let back = |lease: &Lease| Settlement::each(lease, vec![(lease.range, Outcome::Release)]);
        let back: Vec<Settlement> = self.leases.iter().map(back).collect();
        if !back.is_empty() {
            no_panic("releasing leases", self.store.settle(&back)).await?;
            tracing::debug!(leases = back.len(), "unused leases released");
            self.leases.clear();
        }
        Ok(())
    }

    /// Whether the leases have waited for too long.
    pub(super) fn is_old(&self) -> bool {
        self.old_at().is_some_and(|at| Instant::now() >= at)
    }

    fn old_at(&self) -> Option<Instant> {
        let waits = if self.lease_for.is_zero() { UNENDING } else { self.lease_for / 3 };
        (!self.is_empty()).then(|| self.since + waits)
    }
}

/// The list while a call hands out leases from it. The watching task does nothing meanwhile, so it is notified at the
/// end, and only if leases are left: waking its thread for each claim delays the hand-out where cores are few. A call
/// that is dropped or panics between the claim and the hand-out ends here too, so no lease waits unwatched.
#[derive(Debug)]
pub(super) struct Held<'a>(MutexGuard<'a, Listed>);

impl Deref for Held<'_> {
    type Target = Listed;

    fn deref(&self) -> &Listed {
        &self.0
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Listed {
        &mut self.0
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.is_empty() {
            self.left.notify_one();
        }
    }
}

/// The list, and the task that watches it. Dropping it releases the leases.
#[derive(Debug)]
pub(super) struct List {
    listed: Arc<Mutex<Listed>>,
    watch: JoinHandle<()>,
    thread: Arc<LeaseThread>,
}

impl List {
    pub(super) fn new(thread: Arc<LeaseThread>, store: Arc<dyn Store>) -> Self {
        let (left, since) = (Arc::new(Notify::new()), Instant::now());
        let (leases, lease_for) = (VecDeque::new(), Duration::ZERO);
        let listed = Listed { store, leases, lease_for, since, left: Arc::clone(&left) };
        let listed = Arc::new(Mutex::new(listed));
        let watched = Arc::downgrade(&listed);
        let watch = move || watch(Weak::clone(&watched), Arc::clone(&left));
        List { listed, watch: thread.spawn_watched("claimed leases", watch), thread }
    }

    /// The list, for a call that hands out leases: the watching task waits meanwhile.
    pub(super) async fn hold(&self) -> Held<'_> {
        Held(self.listed.lock().await)
    }
}

impl Drop for List {
    fn drop(&mut self) {
        self.watch.abort();
        let listed = Arc::clone(&self.listed);
        if listed.try_lock().is_ok_and(|listed| listed.is_empty()) {
            return;
        }
        // The task keeps a reference to the thread, which would otherwise end with its last user.
        let thread = Arc::clone(&self.thread);
        self.thread.spawn(async move {
            if let Err(error) = in_time(HEARTBEAT_MAX, listed.lock().await.give_back()).await {
                not_given_back(&error);
            }
            drop(thread);
        });
    }
}

/// Releases leases that have waited for too long, until the list is dropped.
async fn watch(list: Weak<Mutex<Listed>>, left: Arc<Notify>) {
    loop {
        let Some(listed) = list.upgrade() else { return };
        let again_at = {
            let mut listed = listed.lock().await;
            // Bounded, because it holds the list. Leases released by then stay released, and the next try does the
            // rest.
            let result =
                if listed.is_old() { in_time(HEARTBEAT_MAX, listed.give_back()).await } else { Ok(()) };
            match result {
                Ok(()) => listed.old_at(),
                Err(error) => {
                    not_given_back(&error);
                    Some(Instant::now() + RETRY_AFTER)
                }
            }
        };
        drop(listed);
        match again_at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => left.notified().await,
        }
    }
}

fn not_given_back(error: &Error) {
    tracing::debug!(%error, "leases not released, they expire at their deadline");
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::consumer::tests::still::Still;

    const MINUTE: Duration = Duration::from_secs(60);

    /// A list without a watching task, so that its notifications can be observed.
    fn unwatched() -> (Mutex<Listed>, Arc<Notify>, Vec<Lease>) {
        let (store, left) = (Arc::new(Still::default()), Arc::new(Notify::new()));
        store.hand_out(1);
        store.hand_out(2);
        let leases = store.leases.lock().unwrap().drain(..).collect();
        let listed = Listed {
            store,
            leases: VecDeque::new(),
            lease_for: Duration::ZERO,
            since: Instant::now(),
            left: Arc::clone(&left),
        };
        (Mutex::new(listed), left, leases)
    }

    #[tokio::test(start_paused = true)]
    async fn the_watch_is_woken_only_for_leases_that_are_left() {
        let (listed, left, leases) = unwatched();
        let mut held = Held(listed.lock().await);
        held.fill(leases.clone(), MINUTE, Instant::now());
        assert!(in_time(MINUTE, wait_for(&left)).await.is_err(), "the list is held");
        held.pop();
        held.pop();
        drop(held);
        assert!(in_time(MINUTE, wait_for(&left)).await.is_err(), "nothing is left");
        let mut held = Held(listed.lock().await);
        held.fill(leases, MINUTE, Instant::now());
        held.pop();
        drop(held);
        assert!(in_time(MINUTE, wait_for(&left)).await.is_ok(), "one is left");
    }

    async fn wait_for(left: &Notify) -> Result<()> {
        left.notified().await;
        Ok(())
    }
}
