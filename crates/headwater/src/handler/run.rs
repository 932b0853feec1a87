//! Runs handlers, for all callers: workers, both kinds of transaction, and batches that a program pulls.
//!
//! [`HandlerRun`] decides which messages of a lease are handled and in which order: none once the group is held back,
//! and no message whose key waits for an older one. [`HandlerGuard`] calls a handler: a panic, a payload that cannot be
//! decoded and a timeout become verdicts too, and each call is timed, counted and has a span. Neither waits for
//! anything by itself, so synchronous handlers on SQLite's writer thread follow the same rules as async ones.

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

use super::burials::{Burials, Undecodable};
use super::report::Call;
use crate::codec::DecodeError;
use crate::consumer::ServeState;
use crate::error::panic_text;
use crate::lease::Lease;
use crate::limits::DELAY_MAX;
use crate::message::{Message, Offset};
use crate::observe::metrics::GroupMetrics;
use crate::observe::trace;
use crate::settle::{RetryPolicy, Verdict, WaitingKeys, with_followers_held};
use crate::store::Store;
use crate::subscription::Subscription;

/// One run of handlers over messages of a lease, offsets rising.
///
/// Every message is either handled and has a verdict, or is released here: a message that was not handled is never
/// done.
#[derive(Debug)]
pub(crate) struct HandlerRun<M> {
    pub(crate) guard: Arc<HandlerGuard>,
    pub(crate) messages: M,
    pub(crate) attempt: u32,
    policy: RetryPolicy,
    next: usize,
    waiting: WaitingKeys,
    said: Said,
}

/// The verdicts on the messages of a run; messages not named are done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) verdicts: Vec<(Offset, Verdict)>,
    /// How many of the messages that are done a handler skipped.
    pub(crate) skipped: u64,
}

impl Said {
    /// The same verdict on all of these messages.
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

    /// Adds the verdicts on other messages.
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
            policy: *policy,
            next: 0,
            waiting: WaitingKeys::of(lease, policy),
            said: Said::default(),
        }
    }

    /// The index of the next message to be handled.
    pub(crate) fn next_one(&mut self) -> Option<usize> {
        self.next(1).map(|part| part.start)
    }

    /// The indexes of the next messages to be handled together, at most `most`.
    pub(crate) fn next(&mut self, most: usize) -> Option<Range<usize>> {
        if self.guard.serve_state.is_held_back() {
            // Messages handled so far keep their verdicts; the rest is released for other processes.
            self.said.append(Said::of_all(&self.messages[self.next..], &Verdict::Release));
            self.next = self.messages.len();
        }
        loop {
            let message = self.messages.get(self.next)?;
            if self.waiting.hold(message) {
                self.said.add(message, Verdict::Release);
            } else if !self.guard.drops_expired(message) {
                break;
            }
            self.next += 1;
        }
        let first = self.next;
        let free = |message: &&Message| !self.waiting.hold(message) && !self.guard.is_expired(message);
        let more = self.messages[first + 1..].iter().take(most.saturating_sub(1));
        self.next += 1 + more.take_while(free).count();
        Some(first..self.next)
    }

    /// Takes all messages, to be handled together; false, and none is taken, unless each of them is to be handled.
    pub(crate) fn next_all(&mut self) -> bool {
        let free = |message: &Message| !self.waiting.hold(message) && !self.guard.is_expired(message);
        if self.next > 0 || self.guard.serve_state.is_held_back() || !self.messages.iter().all(free) {
            return false;
        }
        self.next = self.messages.len();
        true
    }

    /// Records that all messages are done, which [`HandlerRun::next_all`] took.
    pub(crate) fn all_done(mut self) -> Said {
        self.said_of(0..self.messages.len(), Vec::new());
        self.finish()
    }

    /// Records a handler's verdict on one message.
    pub(crate) fn said(&mut self, at: usize, verdict: Verdict) {
        let verdict = self.judged(at, verdict);
        self.add(at, verdict);
    }

    /// The verdict that counts: see [`HandlerGuard::judged`].
    fn judged(&self, at: usize, verdict: Verdict) -> Verdict {
        let call = Call { messages: &self.messages[at..=at], attempt: self.attempt, member: None };
        self.guard.judged(call, verdict, &self.policy)
    }

    fn add(&mut self, at: usize, verdict: Verdict) {
        self.waiting.said(&self.messages[at], &verdict);
        self.said.add(&self.messages[at], verdict);
    }

    /// Records a handler's verdicts on messages that it got together; messages not named are done.
    pub(crate) fn said_of(&mut self, part: Range<usize>, verdicts: Vec<(Offset, Verdict)>) {
        if verdicts.is_empty() {
            self.guard.burials.reset();
            return;
        }
        let mut named: HashMap<Offset, Verdict> = verdicts.into_iter().collect();
        // Judged before followers are held: a burial that becomes a release holds back later messages of its key.
        let mut judged = Vec::with_capacity(named.len());
        for at in part.clone() {
            let offset = self.messages[at].offset;
            let verdict = named.remove(&offset);
            let is_named = verdict.is_some();
            let verdict = self.judged(at, verdict.unwrap_or(Verdict::Done));
            if is_named {
                judged.push((offset, verdict));
            }
        }
        let verdicts = with_followers_held(self.waiting.is_ordered(), &self.messages[part.clone()], judged);
        let mut named: HashMap<Offset, Verdict> = verdicts.into_iter().collect();
        for at in part {
            if let Some(verdict) = named.remove(&self.messages[at].offset) {
                self.add(at, verdict);
            }
        }
    }

    /// The verdicts on all messages.
    pub(crate) fn finish(self) -> Said {
        debug_assert_eq!(self.next, self.messages.len(), "each message was handled or released");
        self.said
    }
}

/// Calls the handlers of one group.
#[derive(Debug)]
pub(crate) struct HandlerGuard {
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) metrics: Arc<GroupMetrics>,
    pub(crate) serve_state: Arc<ServeState>,
    pub(crate) undecodable: Undecodable,
    pub(crate) burials: Burials,
    /// The store whose clock shows whether a message has expired; without it, this machine's clock does.
    pub(crate) store: Option<Arc<dyn Store>>,
}

/// How a call ended.
enum Ended<T> {
    Said(T),
    NotDecoded(DecodeError),
    Panicked(Box<dyn Any + Send>),
    TooLong(Duration),
}

impl HandlerGuard {
    /// A guard whose metrics and state are not shared.
    #[cfg(all(feature = "sqlite", any(test, feature = "conformance")))]
    pub(crate) fn apart(subscription: &Subscription) -> Arc<Self> {
        let (topic, group) = (&subscription.topic.name, &subscription.group);
        let metrics = crate::observe::metrics::Registry::default().group(topic, group);
        let serve_state = Arc::new(ServeState::new(subscription.topic.settings.heartbeat_interval));
        let subscription = Arc::new(subscription.clone());
        Arc::new(HandlerGuard {
            subscription,
            timeout: None,
            metrics,
            serve_state,
            undecodable: Undecodable::default(),
            burials: Burials::default(),
            store: None,
        })
    }

    /// Whether the time of a message is over: it must not be handled any more.
    pub(crate) fn is_expired(&self, message: &Message) -> bool {
        let now = || self.store.as_ref().map_or_else(jiff::Timestamp::now, |store| store.now());
        message.expires_at().is_some_and(|at| at <= now())
    }

    /// The same, and counts it: the message is then done.
    pub(crate) fn drops_expired(&self, message: &Message) -> bool {
        let expired = self.is_expired(message);
        self.metrics.expired.add(u64::from(expired));
        expired
    }

    /// Calls a handler with one message or with a batch. `started` is the present: the caller has read the clock
    /// already, and a reading costs a tenth of a call of an empty handler. `on_wait` is called if the handler does not
    /// finish at once.
    pub(crate) async fn call<F: Future>(
        &self,
        call: Call<'_>,
        started: Instant,
        on_wait: impl FnOnce(),
        start: impl FnOnce() -> Result<F, DecodeError>,
    ) -> Result<F::Output, Verdict> {
        let ended = self.ended(call, started, on_wait, start).await;
        self.verdict_of(call, started.elapsed(), ended)
    }

    /// Calls a handler with one message of a slice that is handled together, and returns how long it took. The error says
    /// why the message is not done: the slice is rolled back then, and all of it handled once more, by
    /// [`HandlerGuard::call`]. Those calls are the ones that are counted and reported.
    pub(crate) async fn try_call<F: Future<Output = Verdict>>(
        &self,
        call: Call<'_>,
        on_wait: impl FnOnce(),
        start: impl FnOnce() -> F,
    ) -> Result<Duration, String> {
        if self.serve_state.is_held_back() {
            return Err("the group is held back".to_owned());
        }
        let started = Instant::now();
        let ended = self.ended(call, started, on_wait, || Ok(start())).await;
        let took = started.elapsed();
        match ended {
            // A handler on SQLite's writer thread is not interrupted.
            Ended::Said(Verdict::Done) if self.timeout.is_none_or(|limit| took <= limit) => Ok(took),
            Ended::Said(Verdict::Done) | Ended::TooLong(_) => Err(format!("the handler took {took:?}")),
            Ended::Said(verdict) => Err(format!("the handler returned {verdict:?}")),
            Ended::NotDecoded(error) => Err(error.to_string()),
            Ended::Panicked(panic) => Err(format!("the handler panicked: {}", panic_text(&*panic))),
        }
    }

    async fn ended<F: Future>(
        &self,
        call: Call<'_>,
        started: Instant,
        on_wait: impl FnOnce(),
        start: impl FnOnce() -> Result<F, DecodeError>,
    ) -> Ended<F::Output> {
        let _in_flight = self.metrics.hold(call.messages.len() as u64);
        match catch_unwind(AssertUnwindSafe(start)) {
            Ok(Ok(handling)) => {
                let (span, context) = self.span_of(call);
                let handling = pin!(AssertUnwindSafe(within(span, context, handling)).catch_unwind());
                self.attend(started, on_wait, handling).await
            }
            Ok(Err(error)) => Ended::NotDecoded(error),
            Err(panic) => Ended::Panicked(panic),
        }
    }

    /// Calls a synchronous handler. It cannot be interrupted: a handler that exceeds its timeout fails once it returns.
    #[cfg(feature = "sqlite")]
    pub(crate) fn call_now(
        &self,
        call: Call<'_>,
        handle: impl FnOnce() -> Result<Verdict, DecodeError>,
    ) -> Verdict {
        let _in_flight = self.metrics.hold(1);
        let started = Instant::now();
        let (span, context) = self.span_of(call);
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
            (Ended::Said(verdict), Some(limit)) if verdict.is_done() && took > limit => Ended::TooLong(limit),
            (ended, _) => ended,
        };
        self.verdict_of(call, took, ended).unwrap_or_else(|verdict| verdict)
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

    fn verdict_of<T>(&self, call: Call<'_>, took: Duration, ended: Ended<T>) -> Result<T, Verdict> {
        if !matches!(ended, Ended::NotDecoded(_)) {
            self.metrics.handle_seconds.record(took);
        }
        match ended {
            Ended::Said(value) => Ok(value),
            Ended::NotDecoded(error) => Err(self.undecodable(call, error.to_string())),
            Ended::Panicked(panic) => {
                let text = format!("the handler panicked: {}", panic_text(&*panic));
                self.panicked(call, &text);
                Err(Verdict::Failed(text))
            }
            Ended::TooLong(limit) => {
                let text = format!(
                    "the handler took longer than its timeout of {limit:?}; raise the consumer's timeout or make it faster"
                );
                self.timed_out(call, &text);
                Err(Verdict::Failed(text))
            }
        }
    }

    /// The span of a call, and the trace of its message. A batch has no trace: its messages may belong to many.
    fn span_of(&self, call: Call<'_>) -> (Span, Option<trace::Current>) {
        let (topic, group) = (&self.subscription.topic.name, &self.subscription.group);
        match call.messages {
            [message] => trace::span(topic, group, message, call.attempt),
            messages => (trace::batch_span(topic, group, messages, call.attempt), None),
        }
    }
}

/// Runs a handler in its span, and in the trace of its message.
async fn within<F: Future>(span: Span, context: Option<trace::Current>, handling: F) -> F::Output {
    match context {
        Some(context) => trace::within_current(context, handling.instrument(span)).await,
        None if span.is_disabled() => handling.await,
        None => handling.instrument(span).await,
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;
