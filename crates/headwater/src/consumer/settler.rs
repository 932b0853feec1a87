//! Settling: everything that finished while one call was under way goes into the next, in one statement.
//!
//! One call at a time, so that settlements of a lease are stored in the order they were made. While the database is
//! unreachable the call is repeated until the lease must have expired; messages whose settlement is lost by then are
//! redelivered.
//!
//! It holds the held leases, which hold what they share with their group ([`GroupLeases`](super::leases::GroupLeases));
//! none of that refers back to the settler.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::work::LeaseWork;
use crate::error::{ErrorKind, Result, no_panic, panic_text};
use crate::lease::LeaseToken;
use crate::settle::{Parts, Settlement};
use crate::store::Store;

/// Most settlements of one call.
const CALL_MAX: usize = 1_000;

/// Every held lease of a process.
type InHand = Arc<Mutex<HashMap<LeaseToken, Arc<LeaseWork>>>>;

/// Settles finished leases. Clones share one queue; it also has every held lease.
#[derive(Clone, Debug)]
pub(crate) struct Settler {
    /// Unbounded: workers that end, and consumers that are dropped, cannot wait for room in it, and a dropped order
    /// would be a lease that is never settled. Its length is bounded nevertheless. An order is the last of its lease,
    /// or it names messages that no order before it named: so there are no more orders than held messages. And a group
    /// claims nothing while [`HELD_MAX`](super::leases::HELD_MAX) of its leases are not settled.
    queue: mpsc::UnboundedSender<Order>,
    in_hand: InHand,
    store: Arc<dyn Store>,
    /// Notified when the first lease is taken.
    first: Arc<Notify>,
}

#[derive(Debug)]
enum Order {
    Settle { work: Arc<LeaseWork>, settlement: Settlement, last: bool },
    Flush(oneshot::Sender<()>),
}

impl Settler {
    /// Starts the task; it ends when the last clone is dropped and everything is settled.
    pub(crate) fn start(store: Arc<dyn Store>) -> Self {
        let (queue, mut orders) = mpsc::unbounded_channel();
        let in_hand = InHand::default();
        let (settling, held) = (Arc::clone(&store), Arc::clone(&in_hand));
        tokio::spawn(async move {
            // Leases of the call that panicked are not extended any more, and are redelivered when they expire.
            while let Err(panic) = AssertUnwindSafe(run(&*settling, &held, &mut orders)).catch_unwind().await
            {
                tracing::error!(panic = panic_text(&*panic), "settler panicked");
            }
        });
        Settler { queue, in_hand, store, first: Arc::default() }
    }

    /// Whether its task has ended, which happens only with the program's runtime: then nothing is settled or handled
    /// any more, and no heartbeat may be sent for this process.
    pub(crate) fn is_gone(&self) -> bool {
        self.queue.is_closed()
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Takes a lease, to be extended and settled in parts.
    pub(crate) fn take(&self, work: &Arc<LeaseWork>) {
        work.of.take();
        let mut in_hand = self.in_hand.lock().expect("no panic while held");
        if in_hand.is_empty() {
            self.first.notify_one();
        }
        in_hand.insert(work.token(), Arc::clone(work));
    }

    /// Whether no lease is held.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_hand.lock().expect("no panic while held").is_empty()
    }

    /// Returns once a lease is taken; at once if one was since the last call. Also if the task has ended.
    pub(crate) async fn busy(&self) {
        tokio::select! {
            () = self.first.notified() => {}
            () = self.queue.closed() => {}
        }
    }

    /// Makes every held lease be extended out of turn: the store returns which of them it still has.
    pub(crate) fn verify(&self) {
        self.in_hand().iter().for_each(|work| work.doubted.store(true, Ordering::Relaxed));
    }

    /// The held leases.
    pub(crate) fn in_hand(&self) -> Vec<Arc<LeaseWork>> {
        self.in_hand.lock().expect("no panic while held").values().cloned().collect()
    }

    /// All messages of a lease are done: settles it.
    pub(crate) fn finish(&self, work: &Arc<LeaseWork>) {
        match work.settle_all() {
            Some(settlement) => self.settle(work, settlement, true),
            None => forget_lease(&self.in_hand, work),
        }
    }

    /// Settles what is done of a lease and releases the rest; false if its last settlement is queued already.
    pub(crate) fn give_back(&self, work: &Arc<LeaseWork>) -> bool {
        let settlement = work.give_back();
        let gives = settlement.is_some();
        settlement.into_iter().for_each(|settlement| self.settle(work, settlement, true));
        gives
    }

    /// Settles a part of a lease; the rest stays held.
    pub(crate) fn settle_part(&self, work: &Arc<LeaseWork>, settlement: Settlement) {
        self.settle(work, settlement, false);
    }

    /// Queues a settlement; `last` means that nothing of the lease is left after it.
    fn settle(&self, work: &Arc<LeaseWork>, settlement: Settlement, last: bool) {
        if !work.of.serve_state.is_over() {
            // The task outlives every clone.
            let _ = self.queue.send(Order::Settle { work: Arc::clone(work), settlement, last });
        } else if last {
            // The subscription has ended and all its leases with it: there is nothing to settle.
            forget_lease(&self.in_hand, work);
        }
    }

    /// Returns once everything queued before is settled.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.queue.send(Order::Flush(done)).is_ok() {
            let _ = flushed.await;
        }
    }
}

/// A lease is settled or lost permanently.
fn forget_lease(in_hand: &InHand, work: &LeaseWork) {
    in_hand.lock().expect("no panic while held").remove(&work.token());
    work.of.forget_lease(&work.lease);
}

async fn run(store: &dyn Store, in_hand: &InHand, orders: &mut mpsc::UnboundedReceiver<Order>) {
    let mut taken = Vec::with_capacity(CALL_MAX);
    while orders.recv_many(&mut taken, CALL_MAX).await > 0 {
        let (mut works, mut settlements, mut flushes) = (Vec::new(), Vec::new(), Vec::new());
        for order in taken.drain(..) {
            match order {
                Order::Settle { work, settlement, last } => {
                    works.push((work, last));
                    settlements.push(settlement);
                }
                Order::Flush(done) => flushes.push(done),
            }
        }
        if !settlements.is_empty() {
            settle(store, in_hand, works, settlements).await;
        }
        for flush in flushes {
            let _ = flush.send(());
        }
    }
}

async fn settle(
    store: &dyn Store,
    in_hand: &InHand,
    works: Vec<(Arc<LeaseWork>, bool)>,
    settlements: Vec<Settlement>,
) {
    let started = Instant::now();
    let results = settle_patiently(store, &works, &settlements).await;
    for (((work, last), settlement), result) in works.into_iter().zip(settlements).zip(results) {
        work.of.metrics.settle_seconds.record(started.elapsed());
        match result {
            Ok(()) => {}
            // Its subscription has ended: a lost lease is expected.
            Err(_) if work.of.serve_state.is_over() => {}
            Err(error) => {
                work.unsettled.store(true, Ordering::Relaxed);
                if error.kind() == ErrorKind::LeaseLost {
                    work.lost.store(true, Ordering::Relaxed);
                    work.of.metrics.lease_lost.add(1);
                } else if !last {
                    work.unsettle(settlement);
                }
                work.of.metrics.errors.record_error(&error, format!("settling offsets {}", work.lease.range));
                tracing::warn!(
                    topic = %work.of.subscription.topic.name, group = %work.of.subscription.group,
                    offsets = %work.lease.range, token = %work.token(), %error,
                    "settlement failed, messages will be redelivered"
                );
            }
        }
        if last {
            forget_lease(in_hand, &work);
        }
    }
}

/// Settles, and repeats while the database is unreachable and the leases may still be held.
///
/// Whole acks go together, in one statement whatever their number; the others one by one, so that a repeat never names
/// what was settled already. If a lease is named twice, order matters, and all go one by one.
async fn settle_patiently(
    store: &dyn Store,
    works: &[(Arc<LeaseWork>, bool)],
    settlements: &[Settlement],
) -> Vec<Result<()>> {
    let patience = works.iter().map(|(work, _)| work.lease_for).max().unwrap_or_default();
    let patience = if patience.is_zero() { Duration::from_secs(3_600) } else { patience };
    let deadline = Instant::now() + patience;
    let tokens: HashSet<LeaseToken> = settlements.iter().map(|settlement| settlement.lease.token).collect();
    let once = tokens.len() == settlements.len();
    let together = |settlement: &Settlement| once && settlement.parts == Parts::AckAll;
    let acks: Vec<Settlement> = settlements.iter().filter(|one| together(one)).cloned().collect();
    let mut acked =
        if acks.is_empty() { Vec::new().into_iter() } else { ask(store, &acks, deadline).await.into_iter() };
    let mut results = Vec::with_capacity(settlements.len());
    for settlement in settlements {
        let result = if together(settlement) {
            acked.next()
        } else {
            let of_it = works.iter().find(|(work, _)| work.token() == settlement.lease.token);
            let _settling = match of_it {
                Some((work, _)) => Some(work.settling.lock().await),
                None => None,
            };
            ask(store, std::slice::from_ref(settlement), deadline).await.into_iter().next()
        };
        results.push(result.expect("the store answers for every settlement"));
    }
    results
}

/// One call, repeated while it fails with a retryable error.
///
/// After `Busy` and `Unavailable` nothing has happened: a lease found lost afterwards is lost. Only a call whose answer
/// was lost (`CommitUnknown`) may have settled what its repeat does not find any more. Repeating it is safe: a token is
/// gone once its lease is settled, so nothing is settled twice.
async fn ask(store: &dyn Store, settlements: &[Settlement], deadline: Instant) -> Vec<Result<()>> {
    let mut pause = Duration::from_millis(20);
    let mut answer_lost = false;
    loop {
        let error = match no_panic("settling", store.settle(settlements)).await {
            Ok(mut results) => {
                let lost = |result: &Result<()>| {
                    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::LeaseLost)
                };
                if answer_lost {
                    results.iter_mut().filter(|result| lost(result)).for_each(|result| *result = Ok(()));
                }
                return results;
            }
            Err(error) => error,
        };
        let unknown = error.kind() == ErrorKind::CommitUnknown;
        if !(error.is_retryable() || unknown) || Instant::now() + pause >= deadline {
            return settlements.iter().map(|_| Err(error.copy())).collect();
        }
        tracing::warn!(%error, leases = settlements.len(), "settlement failed, retrying");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
        answer_lost |= unknown;
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;
