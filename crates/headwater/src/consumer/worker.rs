//! A worker: takes pieces of work until there are none, runs handlers, and notes how they ended.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::Instant;
use tracing::Instrument;

use super::group::Group;
use super::member::Member;
use super::queue::{Slice, Unit};
use super::transaction;
use crate::error::panic_text;
use crate::handler::{Context, HandleBatch, Handler, Messages};
use crate::limits::DELAY_MAX;
use crate::message::{Message, Offset};
use crate::observe::trace;
use crate::settle::{Verdict, WaitingKeys, decide, jitter_of, outcomes_of, with_followers_held};

/// Works until the queue is empty. As many run at once as the group's concurrency allows.
pub(crate) async fn run(group: Arc<Group>) {
    let mut current = None;
    while let Some(unit) = group.next(&mut current) {
        match unit {
            Unit::One(slice, at) => one(&group, &slice, at).await,
            Unit::Whole(slice) => whole(&group, &slice).await,
        }
        // Handlers that never wait would keep the thread from everybody else.
        tokio::task::coop::consume_budget().await;
    }
}

/// Handles one message for itself.
async fn one(group: &Arc<Group>, slice: &Arc<Slice>, at: usize) {
    let message = &slice.messages[at];
    let verdict = handle_one(group, slice, message, at).await;
    let outcome = decide(verdict, slice.work.lease.attempt, &slice.work.policy, jitter_of(message));
    group.count(&outcome);
    group.done(std::slice::from_ref(message));
    if slice.work.finish(message.offset, outcome) {
        group.settle_all(&slice.work);
    }
}

/// Handles all of a slice: a batch, a transaction, or a lane's messages in their order.
async fn whole(group: &Arc<Group>, slice: &Arc<Slice>) {
    let ended = match &slice.member.handler {
        _ if slice.each.is_some() => {
            let verdicts = in_order(group, slice).await;
            finish(group, slice, &slice.messages, verdicts)
        }
        Handler::One(_) => {
            let verdicts = in_order(group, slice).await;
            finish(group, slice, &slice.messages, verdicts)
        }
        Handler::Batch(handler) => in_batches(group, slice, &**handler).await,
        #[cfg(feature = "postgres")]
        Handler::Postgres(handler) => transaction::in_postgres(group, slice, handler).await,
        #[cfg(feature = "sqlite")]
        Handler::Sqlite(handler) => transaction::in_sqlite(group, slice, handler).await,
    };
    group.done(&slice.messages);
    if ended {
        group.settle_all(&slice.work);
    }
}

/// Notes verdicts on some of these messages; true if the lease is at its end by that.
fn finish(group: &Group, slice: &Slice, messages: &Messages, verdicts: Vec<(Offset, Verdict)>) -> bool {
    let outcomes = outcomes_of(&slice.work.lease, messages, verdicts, &slice.work.policy);
    group.metrics.acked.add((messages.len() - outcomes.len()) as u64);
    outcomes.iter().for_each(|(_, outcome)| group.count(outcome));
    slice.work.finish_all(messages, outcomes)
}

/// One after the other. Later messages of a key that failed are not handled: they come after it.
async fn in_order(group: &Arc<Group>, slice: &Arc<Slice>) -> Vec<(Offset, Verdict)> {
    let mut verdicts = Vec::new();
    let mut waiting = WaitingKeys::of(&slice.work.lease, &slice.work.policy);
    for (at, message) in slice.messages.iter().enumerate() {
        if group.is_held_back() {
            // What was handled so far is acked, and the rest is another's.
            verdicts.extend(slice.messages[at..].iter().map(|rest| (rest.offset, Verdict::Release)));
            break;
        }
        if waiting.hold(message) {
            continue;
        }
        let verdict = match &slice.member_of(at).handler {
            Handler::Batch(handler) => {
                let alone = handle_batch(group, slice, &**handler, slice.messages.part(at..at + 1)).await;
                alone.into_iter().next().map_or(Verdict::Done, |(_, verdict)| verdict)
            }
            _ => handle_one(group, slice, message, at).await,
        };
        waiting.said(message, &verdict);
        if !matches!(verdict, Verdict::Done | Verdict::Skip) {
            verdicts.push((message.offset, verdict));
        }
    }
    verdicts
}

/// A batch handler's share: all of an unordered slice at once, or a lane's in batches, one after the other.
async fn in_batches(group: &Arc<Group>, slice: &Arc<Slice>, handler: &HandleBatch) -> bool {
    let mut verdicts = Vec::new();
    let mut waiting = false;
    let mut from = 0;
    while from < slice.messages.len() {
        let to = slice.messages.len().min(from + group.settings.batch);
        let part = slice.messages.part(from..to);
        from = to;
        if waiting || group.is_held_back() {
            // An earlier batch of the lane failed: what follows must not overtake it.
            verdicts.extend(part.iter().map(|message| (message.offset, Verdict::Release)));
            continue;
        }
        let said = handle_batch(group, slice, handler, part.clone()).await;
        let said = with_followers_held(&slice.work.lease, &part, said);
        let waits = |(_, verdict): &(Offset, Verdict)| !matches!(verdict, Verdict::Done | Verdict::Skip);
        waiting = slice.work.lease.lane.is_some() && said.iter().any(waits);
        verdicts.extend(said);
    }
    finish(group, slice, &slice.messages, verdicts)
}

async fn handle_batch(
    group: &Arc<Group>,
    slice: &Arc<Slice>,
    handler: &HandleBatch,
    messages: Messages,
) -> Vec<(Offset, Verdict)> {
    let failed_all = |verdict: Verdict| -> Vec<(Offset, Verdict)> {
        messages.iter().map(|message| (message.offset, verdict.clone())).collect()
    };
    let started = Instant::now();
    if slice.work.is_lost(started) {
        return failed_all(Verdict::Release);
    }
    let member =
        slice.member_of(slice.messages.iter().position(|m| m.offset == messages[0].offset).unwrap_or(0));
    let context = context_of(slice, member, messages.clone());
    let start = || Ok(handler(messages.clone(), context));
    match guarded(group, messages.len(), started, start).await {
        Ok(Ok(verdicts)) => verdicts.into_inner(),
        Ok(Err(Verdict::Skip)) => {
            group.metrics.skipped.add(messages.len() as u64);
            failed_all(Verdict::Skip)
        }
        Ok(Err(verdict)) | Err(verdict) => failed_all(verdict),
    }
}

/// Runs a member's handler on one message. A lease that was lost is not worked on: somebody else has the message.
async fn handle_one(group: &Arc<Group>, slice: &Arc<Slice>, message: &Message, at: usize) -> Verdict {
    let member = slice.member_of(at);
    let Handler::One(handler) = &member.handler else { unreachable!("only single handlers come here") };
    let started = Instant::now();
    if slice.work.is_lost(started) {
        return Verdict::Release;
    }
    let context = context_of(slice, member, slice.messages.part(at..at + 1));
    let verdict = guarded(group, 1, started, || {
        let handling = handler(message, context)?;
        Ok(traced(group, message, slice.work.lease.attempt, handling))
    });
    match verdict.await {
        Ok(verdict) => {
            if verdict == Verdict::Skip {
                group.metrics.skipped.add(1);
            }
            verdict
        }
        Err(verdict) => verdict,
    }
}

/// Runs a handling in the trace its message belongs to, if anybody wants to know.
pub(super) fn traced(
    group: &Group,
    message: &Message,
    attempt: u32,
    handling: BoxFuture<'static, Verdict>,
) -> BoxFuture<'static, Verdict> {
    let context = trace::of(message).map(|context| context.child());
    let topic = &group.subscription.topic.name;
    let span = trace::span(topic, &group.subscription.group, message, attempt, context.as_ref());
    match context {
        Some(context) => Box::pin(trace::within(context, handling.instrument(span))),
        None if span.is_disabled() => handling,
        None => Box::pin(handling.instrument(span)),
    }
}

pub(super) fn context_of(slice: &Slice, member: &Member, messages: Messages) -> Context {
    Context::new(
        Arc::clone(&member.identity),
        messages,
        slice.work.lease.attempt,
        Arc::clone(&slice.work.lost),
    )
}

/// Runs a handler: a panic, a payload that cannot be decoded and too long a time are verdicts too. While it waits,
/// another worker is called for what is queued behind it. It starts now; the caller has read the clock, which costs a tenth of
/// what a handler that does nothing costs.
pub(super) async fn guarded<T: Send + 'static>(
    group: &Arc<Group>,
    messages: usize,
    started: Instant,
    start: impl FnOnce() -> Result<BoxFuture<'static, T>, crate::codec::DecodeError>,
) -> Result<T, Verdict> {
    let _in_flight = group.metrics.hold(messages as u64);
    let result = match std::panic::catch_unwind(AssertUnwindSafe(start)) {
        Ok(Ok(handling)) => attend(group, started, AssertUnwindSafe(handling).catch_unwind()).await,
        Ok(Err(error)) => {
            group.metrics.decode_failed.add(messages as u64);
            // It would fail the same way each time.
            return Err(Verdict::Bury(error.to_string()));
        }
        Err(panic) => Ok(Err(panic)),
    };
    group.metrics.handle_seconds.record(started.elapsed());
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(panic)) => {
            group.metrics.panicked.add(1);
            let text = format!("the handler panicked: {}", panic_text(&*panic));
            tracing::warn!(group = %group.subscription.group, error = text, "a handler panicked");
            Err(Verdict::Failed(text))
        }
        Err(TooLong(limit)) => Err(Verdict::Failed(format!(
            "the handler took longer than its timeout of {limit:?}; raise the consumer's timeout or make it faster"
        ))),
    }
}

/// The handler took longer than this.
struct TooLong(Duration);

async fn attend<F: Future + Unpin>(
    group: &Arc<Group>,
    started: Instant,
    mut handling: F,
) -> Result<F::Output, TooLong> {
    if let Poll::Ready(done) = futures::poll!(&mut handling) {
        return Ok(done);
    }
    group.call_for_help();
    match group.settings.timeout {
        None => Ok(handling.await),
        Some(limit) => tokio::time::timeout_at(started + limit.min(DELAY_MAX), handling)
            .await
            .map_err(|_| TooLong(limit)),
    }
}
