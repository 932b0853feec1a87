//! Exactly-once effects: the inbox entry, the handler's writes and the ack commit together.
//!
//! One transaction per slice, one savepoint per message, and the settlement inside it. Killed before the commit, nothing of it
//! has happened and the lease is handed out again. Killed after it, the messages are settled and not handed out again; and
//! should one come once more all the same (published twice with one id, or the commit's answer was lost), its inbox entry
//! says that the effect is there. A lease lost meanwhile makes the settlement find nothing: everything is rolled back, and
//! whoever has the messages now does it.

use std::sync::Arc;

use super::group::Group;
use super::queue::Slice;
use super::worker::context_of;
#[cfg(feature = "postgres")]
use super::worker::{guarded, traced};
#[cfg(feature = "postgres")]
use crate::error::Error;
use crate::error::{ErrorKind, Result};
use crate::lease::Settlement;
use crate::message::Offset;
use crate::settle::{Verdict, WaitingKeys, outcomes_of};

/// Handles a slice in one transaction of the embedded store. True if the lease is at its end by that.
#[cfg(feature = "sqlite")]
pub(crate) async fn in_sqlite(
    group: &Arc<Group>,
    slice: &Arc<Slice>,
    handler: &Arc<crate::handler::SqliteHandler>,
) -> bool {
    use crate::store::sqlite::TransactionWork;

    let Some(store) = group.settler.store().as_sqlite() else {
        unreachable!("checked when the member joined")
    };
    let (run, handled) = (Arc::clone(handler), Arc::clone(slice));
    let ending = Arc::clone(slice);
    let work = TransactionWork {
        handler_name: group.settings.inbox_name.clone(),
        token: slice.work.token(),
        messages: slice.messages.to_vec(),
        waiting: WaitingKeys::of(&slice.work.lease, &slice.work.policy),
        handler: Arc::new(move |connection, message| {
            let at = handled.messages.partition_point(|other| other.offset < message.offset);
            run(
                connection,
                message,
                &context_of(&handled, &handled.member, handled.messages.part(at..at + 1)),
            )
        }),
        decide: Box::new(move |verdicts| settlement_of(&ending, verdicts)),
    };
    let started = tokio::time::Instant::now();
    group.call_for_help();
    let _in_flight = group.metrics.hold(slice.messages.len() as u64);
    let done = store.handle_in_transaction(work).await;
    group.metrics.handle_seconds.record(started.elapsed());
    let done = done.map(|done| (settlement_of(slice, done.verdicts.clone()), done.verdicts));
    conclude(group, slice, done)
}

/// Handles a slice in one PostgreSQL transaction. True if the lease is at its end by that.
#[cfg(feature = "postgres")]
pub(crate) async fn in_postgres(
    group: &Arc<Group>,
    slice: &Arc<Slice>,
    handler: &Arc<dyn crate::handler::HandlePostgres>,
) -> bool {
    let done = try_in_postgres(group, slice, &**handler).await;
    conclude(group, slice, done)
}

#[cfg(feature = "postgres")]
async fn try_in_postgres(
    group: &Arc<Group>,
    slice: &Arc<Slice>,
    handler: &dyn crate::handler::HandlePostgres,
) -> Result<(Settlement, Vec<(Offset, Verdict)>)> {
    let Some(store) = group.settler.store().as_postgres() else {
        unreachable!("checked when the member joined")
    };
    let transaction = store.begin().await?;
    let mut verdicts = Vec::new();
    let mut waiting = WaitingKeys::of(&slice.work.lease, &slice.work.policy);
    for (at, message) in slice.messages.iter().enumerate() {
        if group.is_held_back() {
            verdicts.extend(slice.messages[at..].iter().map(|rest| (rest.offset, Verdict::Release)));
            break;
        }
        if waiting.hold(message) {
            continue;
        }
        if !transaction.savepoint_and_enter(&group.settings.inbox_name, message.message_id).await? {
            transaction.release_savepoint().await?;
            continue;
        }
        let context = context_of(slice, &slice.member, slice.messages.part(at..at + 1));
        let handle = transaction.clone();
        let verdict = guarded(group, 1, || {
            let handling = handler.start(handle, message, context)?;
            Ok(traced(group, message, slice.work.lease.attempt, handling))
        });
        let mut verdict = verdict.await.unwrap_or_else(|verdict| verdict);
        if matches!(verdict, Verdict::Done | Verdict::Skip)
            && let Err(error) = transaction.release_savepoint().await
        {
            if error.is_retryable() {
                return Err(error);
            }
            // The handler let an error pass that had broken the transaction: its message failed, and only its.
            verdict = Verdict::Failed(format!("a statement of the handler failed: {error}"));
        }
        match verdict {
            Verdict::Done => continue,
            Verdict::Skip => group.metrics.skipped.add(1),
            _ => transaction.rollback_to_savepoint().await?,
        }
        waiting.said(message, &verdict);
        verdicts.push((message.offset, verdict));
    }
    let settlement = settlement_of(slice, verdicts.clone());
    let _settling = slice.work.settling.lock().await;
    if !transaction.settle(&settlement).await? {
        transaction.rollback().await?;
        return Err(Error::lease_lost(slice.work.token().0));
    }
    transaction.commit().await?;
    Ok((settlement, verdicts))
}

fn settlement_of(slice: &Slice, verdicts: Vec<(Offset, Verdict)>) -> Settlement {
    let outcomes = outcomes_of(&slice.work.lease, &slice.messages, verdicts, &slice.work.policy);
    slice.work.settle_apart(&slice.messages, outcomes)
}

/// Notes how a transaction ended.
fn conclude(group: &Arc<Group>, slice: &Slice, done: Result<(Settlement, Vec<(Offset, Verdict)>)>) -> bool {
    match done {
        Ok((settlement, verdicts)) => {
            let outcomes = outcomes_of(&slice.work.lease, &slice.messages, verdicts, &slice.work.policy);
            group.metrics.acked.add((slice.messages.len() - outcomes.len()) as u64);
            outcomes.iter().for_each(|(_, outcome)| group.count(outcome));
            slice.work.finish_settled(&slice.messages, &settlement)
        }
        Err(error) => {
            group.metrics.errors.record_error(
                &error,
                format!("handling offsets {} in a transaction", slice.work.lease.range),
            );
            if error.kind() == ErrorKind::LeaseLost {
                group.metrics.lease_lost.add(1);
                slice.work.lost.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            tracing::warn!(
                topic = %group.subscription.topic.name, group = %group.subscription.group,
                offsets = %slice.work.lease.range, %error, "a transaction was rolled back, its messages come again"
            );
            // Nothing has happened, or the inbox knows that it has. A database that was away is nobody's attempt; anything else is
            // tried again by policy, because it may break again at once.
            let away = error.is_retryable() || error.kind() == ErrorKind::CommitUnknown;
            let verdict = if away { Verdict::Release } else { Verdict::Failed(error.to_string()) };
            let verdicts = slice.messages.iter().map(|message| (message.offset, verdict.clone())).collect();
            let outcomes = outcomes_of(&slice.work.lease, &slice.messages, verdicts, &slice.work.policy);
            slice.work.finish_all(&slice.messages, outcomes)
        }
    }
}
