//! The one way to run handlers, for workers, for both kinds of transaction and for batches that a program pulls.
//!
//! [`HandlerRun`] says which messages of a lease are handled and in which order: nothing once the group is held back, and no
//! message whose key waits for an older one. [`HandlerGuard`] calls a handler: a panic, a payload that cannot be decoded and
//! too long a time are verdicts too, and each call is timed, counted and has a span. Neither waits for anything by itself,
//! so handlers on the thread that writes to SQLite run by the same rules as those that are futures.

use std::any::Any;
use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use crate::codec::DecodeError;
use crate::consumer::Standing;
use crate::error::panic_text;
use crate::lease::Lease;
use crate::limits::DELAY_MAX;
use crate::message::{Message, Offset};
use crate::observe::metrics::GroupMetrics;
use crate::observe::trace;
use crate::settle::{Outcome, RetryPolicy, Verdict, WaitingKeys, decide, jitter_of, with_followers_held};
use crate::subscription::Subscription;

/// One run of handlers over messages of a lease, offsets rising.
///
/// A message is either handled and said of, or named here as given back: what was not handled is never taken for done.
#[derive(Debug)]
pub(crate) struct HandlerRun<M> {
    pub(crate) guard: Arc<HandlerGuard>,
    pub(crate) messages: M,
    pub(crate) attempt: u32,
    next: usize,
    waiting: WaitingKeys,
    said: Said,
}

/// What was said of the messages of a run; those not named are done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) verdicts: Vec<(Offset, Verdict)>,
    /// How many of those that are done a handler did not want.
    pub(crate) skipped: u64,
}

impl Said {
    /// The same of all of these.
    pub(crate) fn of_all(messages: &[Message], verdict: &Verdict) -> Self {
        let mut said = Said::default();
        messages.iter().for_each(|message| said.add(message, verdict.clone()));
        said
    }

    pub(crate) fn add(&mut self, message: &Message, verdict: Verdict) {
        match verdict {
            Verdict::Done => {}
            Verdict::Skip => self.skipped += 1,
            verdict => self.verdicts.push((message.offset, verdict)),
        }
    }

    /// And what was said of others.
    pub(crate) fn append(&mut self, others: Said) {
        self.verdicts.extend(others.verdicts);
        self.skipped += others.skipped;
    }
}

impl<M: Deref<Target = [Message]>> HandlerRun<M> {
    pub(crate) fn new(guard: &Arc<HandlerGuard>, messages: M, lease: &Lease, policy: &RetryPolicy) -> Self {
        HandlerRun {
            guard: Arc::clone(guard),
            messages,
            attempt: lease.attempt,
            next: 0,
            waiting: WaitingKeys::of(lease, policy),
            said: Said::default(),
        }
    }

    /// The next message to be handled, by position.
    pub(crate) fn next_one(&mut self) -> Option<usize> {
        self.next(1).map(|part| part.start)
    }

    /// The next messages to be handled together, at most so many, by position.
    pub(crate) fn next(&mut self, most: usize) -> Option<Range<usize>> {
        if self.guard.standing.is_held_back() {
            // What was handled so far counts, and the rest is another's.
            self.said.append(Said::of_all(&self.messages[self.next..], &Verdict::Release));
            self.next = self.messages.len();
        }
        while self.waiting.hold(self.messages.get(self.next)?) {
            self.said.add(&self.messages[self.next], Verdict::Release);
            self.next += 1;
        }
        let first = self.next;
        let free = |message: &&Message| !self.waiting.hold(message);
        self.next += self.messages[first..].iter().take(most).take_while(free).count();
        Some(first..self.next)
    }

    /// What a handler said of one message.
    pub(crate) fn said(&mut self, at: usize, verdict: Verdict) {
        self.waiting.said(&self.messages[at], &verdict);
        self.said.add(&self.messages[at], verdict);
    }

    /// What a handler said of messages that it got together; those not named are done.
    pub(crate) fn said_of(&mut self, part: Range<usize>, verdicts: Vec<(Offset, Verdict)>) {
        if verdicts.is_empty() {
            return;
        }
        let verdicts = with_followers_held(self.waiting.is_ordered(), &self.messages[part.clone()], verdicts);
        let mut named: HashMap<Offset, Verdict> = verdicts.into_iter().collect();
        for at in part {
            if let Some(verdict) = named.remove(&self.messages[at].offset) {
                self.said(at, verdict);
            }
        }
    }

    /// What was said of all of them.
    pub(crate) fn finish(self) -> Said {
        debug_assert_eq!(self.next, self.messages.len(), "each message was handled or given back");
        self.said
    }
}

/// Calls the handlers of one group.
#[derive(Debug)]
pub(crate) struct HandlerGuard {
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) metrics: Arc<GroupMetrics>,
    pub(crate) standing: Arc<Standing>,
}

/// How a call ended.
enum Ended<T> {
    Said(T),
    NotDecoded(DecodeError),
    Panicked(Box<dyn Any + Send>),
    TooLong(Duration),
}

impl HandlerGuard {
    /// One whose calls nothing else asks about.
    #[cfg(all(feature = "sqlite", any(test, feature = "conformance")))]
    pub(crate) fn apart(subscription: &Subscription) -> Arc<Self> {
        let (topic, group) = (&subscription.topic.name, &subscription.group);
        let metrics = crate::observe::metrics::Registry::default().group(topic, group);
        let standing = Arc::new(Standing::new(subscription.topic.settings.heartbeat_interval));
        let subscription = Arc::new(subscription.clone());
        Arc::new(HandlerGuard { subscription, timeout: None, metrics, standing })
    }

    /// Calls a handler with one message or with a batch. It starts now: the caller has read the clock, which costs a tenth of
    /// what a handler that does nothing costs. `on_wait` is called if it does not end at once.
    pub(crate) async fn call<F: Future>(
        &self,
        messages: &[Message],
        attempt: u32,
        started: Instant,
        on_wait: impl FnOnce(),
        start: impl FnOnce() -> Result<F, DecodeError>,
    ) -> Result<F::Output, Verdict> {
        let _in_flight = self.metrics.hold(messages.len() as u64);
        let ended = match catch_unwind(AssertUnwindSafe(start)) {
            Ok(Ok(handling)) => {
                let (span, context) = self.span_of(messages, attempt);
                let handling = pin!(AssertUnwindSafe(within(span, context, handling)).catch_unwind());
                self.attend(started, on_wait, handling).await
            }
            Ok(Err(error)) => Ended::NotDecoded(error),
            Err(panic) => Ended::Panicked(panic),
        };
        self.verdict_of(messages.len(), started.elapsed(), ended)
    }

    /// Calls a handler that is no future. It cannot be ended: one that takes too long has failed once it returns.
    #[cfg(feature = "sqlite")]
    pub(crate) fn call_now(
        &self,
        message: &Message,
        attempt: u32,
        handle: impl FnOnce() -> Result<Verdict, DecodeError>,
    ) -> Verdict {
        let _in_flight = self.metrics.hold(1);
        let started = Instant::now();
        let (span, context) = self.span_of(std::slice::from_ref(message), attempt);
        let handle = || span.in_scope(handle);
        let ended = match catch_unwind(AssertUnwindSafe(|| match context {
            Some(context) => trace::within_now(context, handle),
            None => handle(),
        })) {
            Ok(Ok(verdict)) => Ended::Said(verdict),
            Ok(Err(error)) => Ended::NotDecoded(error),
            Err(panic) => Ended::Panicked(panic),
        };
        let took = started.elapsed();
        let ended = match (ended, self.timeout) {
            (Ended::Said(Verdict::Done | Verdict::Skip), Some(limit)) if took > limit => {
                Ended::TooLong(limit)
            }
            (ended, _) => ended,
        };
        self.verdict_of(1, took, ended).unwrap_or_else(|verdict| verdict)
    }

    async fn attend<T>(
        &self,
        started: Instant,
        on_wait: impl FnOnce(),
        mut handling: Pin<&mut impl Future<Output = Result<T, Box<dyn Any + Send>>>>,
    ) -> Ended<T> {
        let done = match (futures_util::poll!(handling.as_mut()), self.timeout) {
            (Poll::Ready(done), _) => done,
            (Poll::Pending, None) => {
                on_wait();
                handling.await
            }
            (Poll::Pending, Some(limit)) => {
                on_wait();
                match tokio::time::timeout_at(started + limit.min(DELAY_MAX), handling).await {
                    Ok(done) => done,
                    Err(_) => return Ended::TooLong(limit),
                }
            }
        };
        done.map_or_else(Ended::Panicked, Ended::Said)
    }

    fn verdict_of<T>(&self, messages: usize, took: Duration, ended: Ended<T>) -> Result<T, Verdict> {
        if !matches!(ended, Ended::NotDecoded(_)) {
            self.metrics.handle_seconds.record(took);
        }
        match ended {
            Ended::Said(value) => Ok(value),
            Ended::NotDecoded(error) => {
                self.metrics.decode_failed.add(messages as u64);
                // It would fail the same way each time.
                Err(Verdict::Bury(error.to_string()))
            }
            Ended::Panicked(panic) => {
                self.metrics.panicked.add(1);
                let text = format!("the handler panicked: {}", panic_text(&*panic));
                tracing::warn!(
                    topic = %self.subscription.topic.name, group = %self.subscription.group, error = text,
                    "handler panicked"
                );
                Err(Verdict::Failed(text))
            }
            Ended::TooLong(limit) => Err(Verdict::Failed(format!(
                "the handler took longer than its timeout of {limit:?}; raise the consumer's timeout or make it faster"
            ))),
        }
    }

    /// The span of a call, and the context of its message. Messages of a batch may belong to many traces: it has none.
    fn span_of(&self, messages: &[Message], attempt: u32) -> (Span, Option<trace::Current>) {
        let (topic, group) = (&self.subscription.topic.name, &self.subscription.group);
        match messages {
            [message] => trace::span(topic, group, message, attempt),
            messages => (trace::batch_span(topic, group, messages, attempt), None),
        }
    }

    /// Counts what became of messages once that is certain: all are done but those of another outcome.
    pub(crate) fn count(&self, messages: usize, skipped: u64, outcomes: &[(Offset, Outcome)]) {
        self.metrics.skipped.add(skipped);
        self.metrics.acked.add((messages - outcomes.len()) as u64);
        outcomes.iter().for_each(|(_, outcome)| self.count_one(outcome));
    }

    /// Decides what becomes of one message that is settled for itself, and counts it.
    pub(crate) fn decide_one(
        &self,
        message: &Message,
        verdict: Verdict,
        attempt: u32,
        policy: &RetryPolicy,
    ) -> Outcome {
        self.metrics.skipped.add(u64::from(verdict == Verdict::Skip));
        let outcome = decide(verdict, attempt, policy, jitter_of(message));
        self.count_one(&outcome);
        outcome
    }

    fn count_one(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Ack => self.metrics.acked.add(1),
            Outcome::Retry { .. } => self.metrics.retried.add(1),
            Outcome::Bury { .. } => self.metrics.buried.add(1),
            Outcome::Release | Outcome::Park { .. } => {}
        }
    }
}

/// Runs a handling in its span, and in the trace that its message belongs to.
async fn within<F: Future>(span: Span, context: Option<trace::Current>, handling: F) -> F::Output {
    match context {
        Some(context) => trace::within_current(context, handling.instrument(span)).await,
        None if span.is_disabled() => handling.await,
        None => handling.instrument(span).await,
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;
