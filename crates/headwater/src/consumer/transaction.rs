//! Exactly-once effects: the inbox entry, the handler's writes and the ack commit together.
//!
//! One transaction per slice, one savepoint per message, and the settlement inside it. After a crash before the commit,
//! none of it has happened and the messages are redelivered. After a crash after the commit, the messages are settled
//! and not redelivered; and should one be delivered once more nevertheless (published twice with one id, or the
//! commit's answer was lost), its inbox entry shows that the effect exists. If the lease was lost meanwhile, the
//! settlement finds nothing: everything is rolled back and released. The release has no effect if another process holds
//! the messages, and counts no attempt if the lease is held after all.
//!
//! A transaction that fails while the lease is held is charged to the message whose handler ran last in it: its
//! statement may have broken the connection, and would break the next one too. That message is retried by policy and
//! becomes a dead letter in the end. Messages before it are handled again at once, without it, so that each round ends
//! and no key loses its order; messages after it are released. Only where no handler ran was the database disconnected,
//! which counts as no attempt.
//!
//! Handlers of the crate's own first try a slice together, without savepoints: `together.rs`.

use std::sync::Arc;

#[cfg(feature = "sqlite")]
use futures_util::FutureExt;
#[cfg(feature = "postgres")]
use tokio::time::Instant;

use super::group::Group;
use super::queue::Slice;
use super::worker::context_of;
#[cfg(feature = "sqlite")]
use crate::codec::DecodeError;
use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "sqlite")]
use crate::handler::Layers;
use crate::handler::{HandleSlice, HandleTransactional, HandlerRun, Messages, Said};
use crate::settle::{Settlement, Verdict, outcomes_of};
#[cfg(feature = "sqlite")]
use crate::store::sqlite::{Handlers, Open, Requests, TransactionWork};

pub(crate) mod together;

/// Handles a slice in one transaction of the store, whichever database it is in. True if the lease is finished by that.
pub(crate) async fn in_store(
    group: &Arc<Group>,
    slice: &Arc<Slice>,
    handler: &Arc<HandleTransactional>,
    slices: Option<&Arc<dyn HandleSlice>>,
) -> bool {
    if let Some(whole) = slices
        && let Some(ended) = together::in_store(group, slice, whole).await
    {
        return ended;
    }
    #[cfg(feature = "postgres")]
    if group.settler.store().as_postgres().is_some() {
        let handler = Arc::clone(handler);
        let handler: Arc<crate::handler::HandlePostgres> =
            Arc::new(move |transaction, message, context| handler(transaction.into(), message, context));
        return in_postgres(group, slice, &handler).await;
    }
    #[cfg(feature = "sqlite")]
    if group.settler.store().as_sqlite().is_some() {
        let (handler, handled) = (Arc::clone(handler), Arc::clone(slice));
        return on_writer_thread(group, slice, move |open, message| {
            let (requests, context) =
                (Requests::default(), context_of(&handled, &handled.member, message.clone()));
            let handling = handler(requests.clone().into(), &message[0], context)?;
            Ok(open.handle(&requests, handling, None))
        })
        .await;
    }
    unreachable!("{} has no transactions of its own", group.settler.store().engine())
}

/// Handles a slice in one transaction of the embedded store, by a synchronous handler. True if the lease is finished by
/// that.
#[cfg(feature = "sqlite")]
pub(crate) async fn in_sqlite(
    group: &Arc<Group>,
    slice: &Arc<Slice>,
    handler: &Arc<crate::handler::HandleSqlite>,
    layers: &Layers,
) -> bool {
    let (handler, layers, handled) = (Arc::clone(handler), layers.clone(), Arc::clone(slice));
    on_writer_thread(group, slice, move |open, message| {
        let context = context_of(&handled, &handled.member, message.clone());
        let handle = handler(&message[0], context.clone())?;
        if layers.is_empty() {
            return Ok(handle(open.connection()));
        }
        let requests = Requests::default();
        let asking = requests.clone();
        let handling = layers.clone().run_one(context, async move { asking.handle_now().await }.boxed());
        Ok(open.handle(&requests, handling.boxed(), Some(handle)))
    })
    .await
}

/// Handles a slice on the writer thread of the embedded store. True if the lease is finished by that.
#[cfg(feature = "sqlite")]
async fn on_writer_thread(
    group: &Arc<Group>,
    slice: &Arc<Slice>,
    handle: impl Fn(&mut Open<'_, '_>, Messages) -> Result<Verdict, DecodeError> + Send + 'static,
) -> bool {
    let Some(store) = group.settler.store().as_sqlite() else {
        unreachable!("checked when the member joined")
    };
    let runtime = tokio::runtime::Handle::current();
    let handle = move |open: &mut Open<'_, '_>, message: Messages| {
        // A handler that waits for a timer or a task fails because it waits, and not because there is no runtime.
        let _entered = runtime.enter();
        handle(open, message)
    };
    let work = work_of(group, slice, Handlers::Each(Box::new(handle)));
    // The worker waits until the writer thread has run it.
    group.call_for_help();
    match store.handle_in_transaction(work).await {
        Ok(said) => {
            let settlement = settlement_of(slice, &slice.messages, &said);
            conclude(group, slice, Some((&slice.messages, settlement)), said)
        }
        Err(error) => {
            let said = judged_all(group, slice, &slice.messages, &broken(group, slice, &error));
            conclude(group, slice, None, said)
        }
    }
}

/// A slice as the writer thread takes it.
#[cfg(feature = "sqlite")]
fn work_of(group: &Group, slice: &Arc<Slice>, handlers: Handlers) -> TransactionWork {
    let (lease_work, ending) = (&slice.work, Arc::clone(slice));
    TransactionWork {
        handler_name: group.settings.inbox_name.clone(),
        member: slice.member.identity.member.clone(),
        lease: lease_work.lease.id(),
        run: HandlerRun::new(&group.guard, slice.messages.clone(), &lease_work.lease, &lease_work.policy),
        handlers,
        decide: Box::new(move |said| settlement_of(&ending, &ending.messages, said)),
    }
}

/// Handles a slice in one PostgreSQL transaction. True if the lease is finished by that.
#[cfg(feature = "postgres")]
pub(crate) async fn in_postgres(
    group: &Arc<Group>,
    slice: &Arc<Slice>,
    handler: &Arc<crate::handler::HandlePostgres>,
) -> bool {
    let mut part = slice.messages.clone();
    // The verdicts on the messages behind the part.
    let mut behind = Said::default();
    loop {
        let mut ran = None;
        let error = match try_in_postgres(group, slice, &part, &**handler, &mut ran).await {
            Ok((settlement, mut said)) => {
                said.append(behind);
                return conclude(group, slice, Some((&part, settlement)), said);
            }
            Err(error) => error,
        };
        let verdict = broken(group, slice, &error);
        let charge = verdict == Verdict::Release && error.kind() != ErrorKind::LeaseLost;
        let Some((at, verdict)) = ran.filter(|_| charge) else {
            let mut said = judged_all(group, slice, &part, &verdict);
            said.append(behind);
            return conclude(group, slice, None, said);
        };
        let verdict =
            group.guard.judged(slice.call(at..at + 1), charged(verdict, &error), &slice.work.policy);
        let mut said = Said::of_all(&part[at..=at], &verdict);
        said.append(Said::of_all(&part[at + 1..], &Verdict::Release));
        said.append(behind);
        if at == 0 {
            return conclude(group, slice, None, said);
        }
        (part, behind) = (part.part(0..at), said);
    }
}

/// The verdict on the message whose handler ran last in a transaction that failed.
#[cfg(feature = "postgres")]
fn charged(said: Verdict, error: &Error) -> Verdict {
    if said.is_failure() {
        return said;
    }
    Verdict::Failed(format!("the transaction failed after the handler had run: {error}"))
}

/// Handles the first messages of a slice. `ran` is set to the last one whose handler was started, and to its verdict.
#[cfg(feature = "postgres")]
async fn try_in_postgres(
    group: &Arc<Group>,
    slice: &Arc<Slice>,
    part: &Messages,
    handler: &crate::handler::HandlePostgres,
    ran: &mut Option<(usize, Verdict)>,
) -> Result<(Settlement, Said)> {
    let Some(store) = group.settler.store().as_postgres() else {
        unreachable!("checked when the member joined")
    };
    let transaction = store.begin().await?;
    let (lease, policy) = (&slice.work.lease, &slice.work.policy);
    let mut run = HandlerRun::new(&group.guard, part.clone(), lease, policy);
    while let Some(at) = run.next_one() {
        let message = &part[at];
        if !transaction.savepoint_and_enter(&group.settings.inbox_name, message.message_id).await? {
            transaction.release_savepoint().await?;
            continue;
        }
        let context = context_of(slice, &slice.member, part.part(at..at + 1));
        let (help, start) = (|| group.call_for_help(), || handler(transaction.clone(), message, context));
        // The part is the beginning of the slice.
        let call = group.guard.call(slice.call(at..at + 1), Instant::now(), help, start);
        let mut verdict = call.await.unwrap_or_else(|verdict| verdict);
        *ran = Some((at, verdict.clone()));
        if verdict.is_done()
            && let Err(error) = transaction.release_savepoint().await
        {
            if error.is_retryable() {
                return Err(error);
            }
            // The handler ignored an error that had aborted the transaction: its message failed, and only that one.
            verdict = Verdict::Failed(format!("a statement of the handler failed: {error}"));
        }
        if !verdict.is_done() {
            transaction.rollback_to_savepoint().await?;
        }
        run.said(at, verdict);
    }
    let said = run.finish();
    let settlement = settlement_of(slice, part, &said);
    settle_and_commit(slice, transaction, &settlement).await?;
    Ok((settlement, said))
}

/// Ends the transaction of a slice, with the settlement inside it; rolls it back if the lease is lost.
#[cfg(feature = "postgres")]
async fn settle_and_commit(
    slice: &Slice,
    transaction: crate::store::postgres::PostgresTransaction,
    settlement: &Settlement,
) -> Result<()> {
    let _settling = slice.work.settling.lock().await;
    if !transaction.settle(settlement).await? {
        transaction.rollback().await?;
        return Err(Error::lease_lost(slice.work.token().0));
    }
    transaction.commit().await
}

fn settlement_of(slice: &Slice, part: &Messages, said: &Said) -> Settlement {
    let outcomes = outcomes_of(&slice.work.lease, part, said.verdicts.clone(), &slice.work.policy);
    slice.work.settle_apart(part, outcomes)
}

/// The same verdict on the first messages of a slice, as far as the limit of burials allows it.
fn judged_all(group: &Group, slice: &Slice, part: &Messages, verdict: &Verdict) -> Said {
    let mut said = Said::default();
    for (at, message) in part.iter().enumerate() {
        let call = slice.call(at..at + 1);
        said.add(message, group.guard.judged(call, verdict.clone(), &slice.work.policy));
    }
    said
}

/// Records that a transaction was rolled back, and returns the verdict on messages that were not settled in it. Nothing
/// has happened, or inbox entries show that it has. A disconnected database counts as no attempt, and neither does a
/// lost lease: releasing it changes nothing, and costs no attempt where it only seemed lost because the clock stepped.
/// Anything else is retried by policy, because it may fail again at once.
fn broken(group: &Group, slice: &Slice, error: &Error) -> Verdict {
    let doing = format!("handling offsets {} in a transaction", slice.work.lease.range);
    group.metrics.errors.record_error(error, doing);
    let lost = error.kind() == ErrorKind::LeaseLost;
    if lost {
        // Still held if only the clock stepped: the keeper verifies it with the store, and the settlement counts what
        // is lost.
        slice.work.doubted.store(true, std::sync::atomic::Ordering::Relaxed);
    }
    tracing::warn!(
        topic = %group.subscription.topic.name, group = %group.subscription.group,
        offsets = %slice.work.lease.range, %error, "transaction rolled back, messages will be redelivered"
    );
    let disconnected = error.is_retryable() || error.kind() == ErrorKind::CommitUnknown;
    if disconnected || lost { Verdict::Release } else { Verdict::Failed(error.to_string()) }
}

/// Records the outcomes of a slice's messages: the first ones were settled in a transaction that committed, if there
/// was one; the others are settled with the lease. True if the lease is finished by that.
fn conclude(group: &Group, slice: &Slice, committed: Option<(&Messages, Settlement)>, said: Said) -> bool {
    // Over all of them at once, so that a key that waits in the first ones holds back the others.
    let mut outcomes = outcomes_of(&slice.work.lease, &slice.messages, said.verdicts, &slice.work.policy);
    slice.count(&group.guard, said.skipped, &outcomes);
    let done = committed.as_ref().map_or(0, |(part, _)| part.len());
    let ended = committed.is_some_and(|(part, settlement)| slice.work.finish_settled(part, &settlement));
    if done == slice.messages.len() {
        return ended;
    }
    let rest = slice.messages.part(done..slice.messages.len());
    outcomes.retain(|(offset, _)| *offset >= rest[0].offset);
    slice.work.finish_all(&rest, outcomes)
}
