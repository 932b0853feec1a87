//! A whole slice in one transaction, without savepoints: one statement inserts all inbox entries, the handler gets the
//! messages that had none, and the settlement acks all of them.
//!
//! **Why this changes nothing of what is promised.** The transaction commits only if every message is done: then it has
//! what the message-by-message transaction of [`super`] has in that case, the same inbox entries, effects and acks, and is
//! as atomic. In every other case (a message that is to be retried, buried, skipped or released, a panic, a timeout, a
//! failed statement, a refused publish, a group that is held back meanwhile) it is rolled back and nothing has happened:
//! no entry, no effect, no attempt, no verdict, nothing counted. The slice is then handled message by message, as if this
//! had not been tried, and only that decides. Should the answer to the commit be lost, the slice is handled message by
//! message as well: an open transaction is waited for at the first inbox entry, and one that has committed is found there,
//! so no effect happens twice; the settlement then finds the lease gone.
//!
//! A handler may so run twice for one delivery, the first time in a transaction that is rolled back. What it does outside
//! of the transaction happens at least once, as ever.
//!
//! **Order.** Messages are handled one after the other, in the order of their offsets. None of the slice is held back by
//! its key at the beginning, and none becomes so, because a message that is not done ends the attempt.
//!
//! **Inbox entries exist before their messages are handled.** No other transaction sees them before the commit. A handler
//! that ended the transaction would commit them too early, and is prevented from it: see `transaction/control.rs`. A
//! handler that reads entries of other messages has to know that those of its slice exist.
//!
//! A slice is refused at the first message that is not done, and what was handled before was in vain. So that a group
//! whose messages often fail does not do everything twice, fewer slices are tried the more are refused: see [`Tries`].

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt;

use super::{broken, conclude, judged_all, settlement_of};
use crate::consumer::group::Group;
use crate::consumer::queue::Slice;
use crate::consumer::worker::context_of;
use crate::error::{Error, ErrorKind, Result, panic_text};
#[cfg(feature = "postgres")]
use crate::handler::HandlerRun;
use crate::handler::{HandleSlice, HandlerGuard, Said};
use crate::settle::Settlement;
#[cfg(feature = "sqlite")]
use crate::store::sqlite::{Handlers, Requests};
use crate::transaction::Transaction;

/// Handles a slice together. `None` if that was refused: it is to be handled message by message. Otherwise true if the
/// lease is finished by that.
pub(super) async fn in_store(
    group: &Arc<Group>,
    slice: &Arc<Slice>,
    handler: &Arc<dyn HandleSlice>,
) -> Option<bool> {
    // A single message is not handled faster, and would be handled twice if it fails.
    if slice.messages.len() < 2 || !group.tries.is_due() {
        return None;
    }
    match attempt(group, slice, handler).await {
        Ok((settlement, said)) => {
            group.tries.succeeded();
            Some(conclude(group, slice, Some((&slice.messages, settlement)), said))
        }
        // Another owner may hold the messages: they are not handled once more.
        Err(error) if error.kind() == ErrorKind::LeaseLost => {
            let said = judged_all(group, slice, &slice.messages, &broken(group, slice, &error));
            Some(conclude(group, slice, None, said))
        }
        Err(error) => {
            group.tries.refused();
            tracing::debug!(
                topic = %group.subscription.topic.name, group = %group.subscription.group,
                offsets = %slice.work.lease.range, %error, "slice rolled back, messages are handled one by one"
            );
            None
        }
    }
}

async fn attempt(
    group: &Arc<Group>,
    slice: &Arc<Slice>,
    handler: &Arc<dyn HandleSlice>,
) -> Result<(Settlement, Said)> {
    #[cfg(feature = "postgres")]
    if let Some(store) = group.settler.store().as_postgres() {
        return in_postgres(group, slice, handler, store).await;
    }
    #[cfg(feature = "sqlite")]
    if let Some(store) = group.settler.store().as_sqlite() {
        let (handler, handled, guard) = (Arc::clone(handler), Arc::clone(slice), Arc::clone(&group.guard));
        let runtime = tokio::runtime::Handle::current();
        let handle = move |open: &mut crate::store::sqlite::Open<'_, '_>, fresh| {
            let _entered = runtime.enter();
            let requests = Requests::default();
            let transaction = Transaction::from(requests.clone());
            open.handle_all(
                &requests,
                handle_fresh(&guard, &handled, handler, transaction, fresh, || {}).boxed(),
            )
        };
        let work = super::work_of(group, slice, Handlers::Together(Box::new(handle)));
        group.call_for_help();
        let said = store.handle_in_transaction(work).await?;
        return Ok((settlement_of(slice, &slice.messages, &said), said));
    }
    unreachable!("{} has no transactions of its own", group.settler.store().engine())
}

#[cfg(feature = "postgres")]
async fn in_postgres(
    group: &Arc<Group>,
    slice: &Arc<Slice>,
    handler: &Arc<dyn HandleSlice>,
    store: &crate::store::postgres::PostgresStore,
) -> Result<(Settlement, Said)> {
    let work = &slice.work;
    let mut run = HandlerRun::new(&group.guard, slice.messages.clone(), &work.lease, &work.policy);
    if !run.next_all() {
        return Err(refused("a message of it is not to be handled now"));
    }
    // Most of the time is spent in waiting for the database.
    group.call_for_help();
    let transaction = store.begin().await?;
    let handled = async {
        let ids: Vec<String> = slice.messages.iter().map(|message| message.message_id.to_string()).collect();
        let mut new = transaction.enter_all(&group.settings.inbox_name, &ids).await?;
        // Of two messages with one id, the first is handled.
        let fresh = (0..ids.len()).filter(|at| new.remove(&ids[*at])).collect();
        let (guard, shared) = (&group.guard, transaction.clone().into());
        handle_fresh(guard, slice, Arc::clone(handler), shared, fresh, || group.call_for_help()).await
    };
    if let Err(error) = handled.await {
        // Waited for, so that message by message nothing waits for it. A connection that does not answer is closed.
        let _ = transaction.rollback().await;
        return Err(error);
    }
    let said = run.all_done();
    let settlement = settlement_of(slice, &slice.messages, &said);
    super::settle_and_commit(slice, transaction, &settlement).await?;
    Ok((settlement, said))
}

/// Handles the fresh messages of a slice in an open transaction; the same on both engines.
async fn handle_fresh(
    guard: &HandlerGuard,
    slice: &Slice,
    handler: Arc<dyn HandleSlice>,
    transaction: Transaction,
    fresh: Vec<usize>,
    on_wait: impl Fn(),
) -> Result<()> {
    let transaction = transaction.shared();
    let all = async {
        let open = handler.begin(transaction.clone(), slice.messages.clone(), fresh.clone()).await?;
        let mut times = Vec::with_capacity(fresh.len());
        for at in fresh {
            let context = context_of(slice, &slice.member, slice.messages.part(at..at + 1));
            let start = || Arc::clone(&open).handle(transaction.clone(), context);
            let tried = guard.try_call(slice.call(at..at + 1), &on_wait, start).await;
            let why = |why| refused(&format!("offset {}: {why}", slice.messages[at].offset));
            times.push(tried.map_err(why)?);
        }
        open.finish(transaction.clone()).await?;
        times.into_iter().for_each(|took| guard.metrics.handle_seconds.record(took));
        Ok(())
    };
    match AssertUnwindSafe(all).catch_unwind().await {
        Ok(done) => done.and_then(|()| transaction.check_shared()),
        Err(panic) => Err(refused(&format!("it panicked: {}", panic_text(&*panic)))),
    }
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("the slice was not handled together: {why}"))
}

/// Which slices of a group are tried together. After each refusal in a row twice as many are not, up to a limit, so that a
/// group all of whose slices are refused handles few messages in vain.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    /// Refusals since the last slice that was handled together.
    in_a_row: AtomicU32,
    /// Slices that are not tried.
    left_out: AtomicU32,
}

/// After six refusals in a row one slice in 64 is tried.
const REFUSALS_MAX: u32 = 6;

impl Tries {
    fn is_due(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.left_out.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err()
    }

    fn succeeded(&self) {
        self.in_a_row.store(0, Ordering::Relaxed);
    }

    fn refused(&self) {
        let in_a_row = self.in_a_row.fetch_add(1, Ordering::Relaxed).min(REFUSALS_MAX);
        self.left_out.store((1 << in_a_row) - 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_whose_slices_are_refused_tries_fewer_and_fewer_of_them() {
        let tries = Tries::default();
        let tried = |slices: u32, tries: &Tries| {
            (0..slices).filter(|_| tries.is_due()).inspect(|_| tries.refused()).count()
        };
        assert_eq!(tried(1 + 1 + 2 + 4, &tries), 4, "0, 1, 3 and 7 are left out in between");
        tried(1_000, &tries);
        assert_eq!(tried(6_400, &tries), 100);
        while !tries.is_due() {}
        tries.succeeded();
        assert!(tries.is_due(), "one that succeeds restores all of them");
    }
}
