//! A worker: takes pieces of work until there are none, runs handlers, and records outcomes.

use std::ops::Range;
use std::sync::Arc;

use tokio::time::Instant;

use super::group::Group;
use super::member::Member;
use super::queue::{Slice, Unit};
use super::transaction;
use crate::handler::{Context, Handler, HandlerRun, Messages, Said};
use crate::message::Offset;
use crate::settle::{Verdict, outcomes_of};

/// Runs until the queue is empty. As many run concurrently as the group's concurrency allows.
pub(crate) async fn run(group: Arc<Group>) {
    let mut current = None;
    while let Some(unit) = group.next(&mut current) {
        match unit {
            Unit::One(slice, at) => one(&group, &slice, at).await,
            Unit::Whole(slice) => whole(&group, &slice).await,
        }
        group.pause_if_due();
        // Handlers that never wait would keep the thread from all other tasks.
        tokio::task::coop::consume_budget().await;
    }
}

/// Handles one message alone.
async fn one(group: &Arc<Group>, slice: &Arc<Slice>, at: usize) {
    let message = &slice.messages[at];
    let (call, policy) = (slice.call(at..at + 1), &slice.work.policy);
    let verdict = group.guard.judged(call, handle_one(group, slice, at).await, policy);
    let outcome = group.guard.decide_one(call, verdict, policy);
    group.done(std::slice::from_ref(message));
    if slice.work.finish(message.offset, outcome) {
        group.settler.finish(&slice.work);
    }
}

/// Handles all of a slice: a batch, a transaction, or a lane's messages in order.
async fn whole(group: &Arc<Group>, slice: &Arc<Slice>) {
    let ended = match &slice.member.handler {
        Handler::One(_) | Handler::Batch(_) => {
            let said = in_order(group, slice).await;
            finish(group, slice, said)
        }
        Handler::Transactional(handler, slices) => {
            transaction::in_store(group, slice, handler, slices.as_ref()).await
        }
        #[cfg(feature = "postgres")]
        Handler::Postgres(handler) => transaction::in_postgres(group, slice, handler).await,
        #[cfg(feature = "sqlite")]
        Handler::Sqlite(handler, layers) => transaction::in_sqlite(group, slice, handler, layers).await,
    };
    group.done(&slice.messages);
    if ended {
        group.settler.finish(&slice.work);
    }
}

/// Records the verdicts on a slice; true if the lease is finished by that.
fn finish(group: &Group, slice: &Slice, said: Said) -> bool {
    let outcomes = outcomes_of(&slice.work.lease, &slice.messages, said.verdicts, &slice.work.policy);
    slice.count(&group.guard, said.skipped, &outcomes);
    slice.work.finish_all(&slice.messages, outcomes)
}

/// One message or one batch after the other, each by its member.
async fn in_order(group: &Arc<Group>, slice: &Arc<Slice>) -> Said {
    let work = &slice.work;
    let mut run = HandlerRun::new(&group.guard, slice.messages.clone(), &work.lease, &work.policy);
    // Messages of several members are handed out one by one, because order is across members.
    let alone = slice.each.is_some() || matches!(slice.member.handler, Handler::One(_));
    let most = if alone { 1 } else { group.settings.batch };
    while let Some(part) = run.next(most) {
        match &slice.member_of(part.start).handler {
            Handler::Batch(_) => {
                let verdicts = handle_batch(group, slice, part.clone()).await;
                run.said_of(part, verdicts);
            }
            _ => run.said(part.start, handle_one(group, slice, part.start).await),
        }
    }
    run.finish()
}

/// Runs a member's handler on a part of a slice. A lost lease is not handled: another process may hold the messages.
async fn handle_batch(group: &Arc<Group>, slice: &Slice, part: Range<usize>) -> Vec<(Offset, Verdict)> {
    let member = slice.member_of(part.start);
    let Handler::Batch(handler) = &member.handler else { unreachable!("only batch handlers come here") };
    let (messages, started) = (slice.messages.part(part.clone()), Instant::now());
    if slice.work.is_lost(started) {
        return Said::of_all(&messages, &Verdict::Release).verdicts;
    }
    let context = context_of(slice, member, messages.clone());
    let (help, start) = (|| group.call_for_help(), || Ok(handler(messages.clone(), context)));
    match group.guard.call(slice.call(part), started, help, start).await {
        Ok(Ok(verdicts)) => verdicts.into_inner(),
        Ok(Err(verdict)) | Err(verdict) => {
            messages.iter().map(|message| (message.offset, verdict.clone())).collect()
        }
    }
}

/// The same for one message.
async fn handle_one(group: &Arc<Group>, slice: &Slice, at: usize) -> Verdict {
    let member = slice.member_of(at);
    let Handler::One(handler) = &member.handler else { unreachable!("only single handlers come here") };
    let (message, started) = (&slice.messages[at], Instant::now());
    if slice.work.is_lost(started) {
        return Verdict::Release;
    }
    if group.guard.drops_expired(message) {
        return Verdict::Done;
    }
    let context = context_of(slice, member, slice.messages.part(at..at + 1));
    let (help, start) = (|| group.call_for_help(), || handler(message, context));
    let call = group.guard.call(slice.call(at..at + 1), started, help, start);
    call.await.unwrap_or_else(|verdict| verdict)
}

pub(super) fn context_of(slice: &Slice, member: &Member, messages: Messages) -> Context {
    Context::new(
        Arc::clone(&member.identity),
        messages,
        slice.work.lease.attempt,
        Arc::clone(&slice.work.lost),
    )
}
