//! A leased batch of an opened consumer: the verdicts on its messages, and the settlement that follows.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::heartbeat::{HEARTBEAT_MAX, in_time};
use super::pull::InUse;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Call, HandlerRun, Said};
use crate::lease::{Lease, OffsetRange};
use crate::lease_thread::Owned;
use crate::message::{Message, Offset};
use crate::settle::{
    Outcome, RetryPolicy, Settlement, Verdict, outcomes_of, own_messages, with_followers_held,
};

/// The pause before a settlement is repeated, and the longest one.
const SETTLE_PAUSE: Duration = Duration::from_millis(50);
const SETTLE_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long it is repeated for a lease that never expires.
const SETTLE_UNENDING: Duration = Duration::from_secs(300);

/// Messages leased to this consumer, to be settled as a whole or one by one.
#[derive(Debug)]
pub struct Batch {
    /// Its group is in use while it exists.
    of: InUse,
    lease: Lease,
    /// To be handled, offsets rising.
    messages: Vec<Message>,
    /// Messages whose key waits for an older message: not handled.
    parked: Vec<(Offset, String)>,
    lease_for: Duration,
    /// From when its time counts: before the call that claimed or extended it, so never later than in the store.
    held_since: Mutex<Instant>,
    policy: RetryPolicy,
}

impl Batch {
    pub(super) fn new(
        of: InUse,
        lease: Lease,
        lease_for: Duration,
        held_since: Instant,
        messages: Vec<Message>,
    ) -> Self {
        let (messages, parked) = own_messages(&lease, of.group.subscription.lanes, messages);
        let policy = of.group.policy();
        Batch { of, lease, messages, parked, lease_for, held_since: Mutex::new(held_since), policy }
    }

    /// The messages, offsets rising.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The attempt of these messages, from 1.
    pub fn attempt(&self) -> u32 {
        self.lease.attempt
    }

    /// The lease behind the batch.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Acks all messages: one DELETE, whatever the size.
    pub async fn ack(self) -> Result<()> {
        let settlement =
            if self.parked.is_empty() { Settlement::ack_all(&self.lease) } else { self.settlement(&[]) };
        self.settle(settlement).await?;
        self.count(0, &[]);
        Ok(())
    }

    /// Releases all messages unhandled: due at once, not counted as an attempt.
    pub async fn release(self) -> Result<()> {
        let settlement = Settlement::each(&self.lease, vec![(self.lease.range, Outcome::Release)]);
        // Not repeated: messages that are not released are redelivered after the deadline.
        self.of.runtime.store.settle(&[settlement]).await?.remove(0)
    }

    /// Settles with a verdict on some messages; messages not named are done.
    ///
    /// In an ordered subscription later messages of a key that failed are released too, so that they are delivered
    /// after it: do not handle them. That also holds at the last attempt, where the failed message becomes a dead
    /// letter: messages behind it that count as done have to be named. [`Batch::handle`] does all of that.
    pub async fn settle_each(self, verdicts: Vec<(Offset, Verdict)>) -> Result<()> {
        let verdicts = with_followers_held(self.lease.lane.is_some(), &self.messages, verdicts);
        let skipped = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Skip).count() as u64;
        self.settle_said(Said { verdicts, skipped }).await
    }

    async fn settle_said(self, said: Said) -> Result<()> {
        let outcomes = outcomes_of(&self.lease, &self.messages, said.verdicts, &self.policy);
        self.settle(self.settlement(&outcomes)).await?;
        self.count(said.skipped, &outcomes);
        Ok(())
    }

    fn count(&self, skipped: u64, outcomes: &[(Offset, Outcome)]) {
        let guard = &self.of.group.guard;
        guard.count(&self.messages, skipped, outcomes, &self.policy, |at| self.call(at));
    }

    /// The call of a handler with one of its messages.
    fn call(&self, at: usize) -> Call<'_> {
        Call { messages: &self.messages[at..=at], attempt: self.lease.attempt, member: None }
    }

    /// Extends the lease to its full time again, from now.
    pub async fn extend(&self) -> Result<()> {
        let asked_at = Instant::now();
        self.of.runtime.store.extend(&[self.lease.id()], self.lease_for).await?.remove(0)?;
        *self.held_since.lock().expect("no panic while held") = asked_at;
        Ok(())
    }

    fn held_since(&self) -> Instant {
        *self.held_since.lock().expect("no panic while held")
    }

    /// Handles the messages one after the other and settles them. Extends the lease at a third of its time, also while
    /// the handler blocks its thread, and keeps order per key in an ordered subscription. A panic of the handler and a
    /// call that takes longer than the consumer's timeout are failed attempts. Once the group is paused or cancelled,
    /// messages that were not started are released. `LeaseLost` if the lease is lost meanwhile, or its time is over and
    /// no extension succeeded: the running handler is dropped, and the messages are redelivered.
    pub async fn handle<H, F>(self, mut handler: H) -> Result<()>
    where
        H: FnMut(Message, u32) -> F,
        F: Future<Output = Verdict>,
    {
        if !self.lease_for.is_zero() && self.held_since().elapsed() >= self.lease_for {
            self.extend().await?;
        }
        let (_keeping, lost) = self.keep();
        tokio::pin!(lost);
        let guard = &self.of.group.guard;
        let mut run = HandlerRun::new(guard, &self.messages[..], &self.lease, &self.policy);
        while let Some(at) = run.next_one() {
            let attempt = run.attempt;
            let start = || Ok(handler(self.messages[at].clone(), attempt));
            let verdict = tokio::select! {
                biased;
                error = &mut lost => return Err(error),
                said = guard.call(self.call(at), Instant::now(), || {}, start) => said,
            };
            run.said(at, verdict.unwrap_or_else(|verdict| verdict));
        }
        let said = run.finish();
        self.of.group.pause_if_due();
        self.settle_said(said).await
    }

    /// Extends the lease on the thread for leases, until the first result is dropped. The second one completes if it is
    /// lost.
    fn keep(&self) -> (Owned<()>, impl Future<Output = Error> + use<>) {
        let (report, lost) = oneshot::channel();
        let (store, id, lease_for) = (Arc::clone(&self.of.runtime.store), self.lease.id(), self.lease_for);
        let held_since = self.held_since();
        let keeping = self.of.runtime.thread.spawn_owned(async move {
            if lease_for.is_zero() {
                return;
            }
            // Past it another process may hold the messages: no extension is awaited any longer.
            let mut ends_at = held_since + lease_for;
            tokio::time::sleep_until(held_since + lease_for / 3).await;
            loop {
                let asked_at = Instant::now();
                let limit = HEARTBEAT_MAX.min(ends_at.saturating_duration_since(asked_at));
                let asked = in_time(limit, store.extend(std::slice::from_ref(&id), lease_for)).await;
                let pause = match asked.and_then(|mut answers| answers.remove(0)) {
                    Ok(()) => {
                        ends_at = asked_at + lease_for;
                        lease_for / 3
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::LeaseLost | ErrorKind::Closed) => {
                        let _ = report.send(error);
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, token = %id.token, "lease extension failed");
                        let left = ends_at.saturating_duration_since(Instant::now());
                        if left.is_zero() {
                            let _ = report.send(Error::lease_lost(id.token.0));
                            return;
                        }
                        (lease_for / 20).min(Duration::from_secs(1)).min(left)
                    }
                };
                tokio::time::sleep(pause).await;
            }
        });
        let lost = async move {
            match lost.await {
                Ok(error) => error,
                Err(_) => std::future::pending().await,
            }
        };
        (keeping, lost)
    }

    /// Repeats a call that fails because the database is locked or disconnected, for as long as the lease may still be
    /// held: the work is done, and giving up would repeat it. Past its deadline the store refuses the token.
    async fn settle(&self, settlement: Settlement) -> Result<()> {
        let unending = self.lease_for.is_zero();
        let until = Instant::now() + if unending { SETTLE_UNENDING } else { self.lease_for };
        let (mut pause, mut unknown) = (SETTLE_PAUSE, false);
        loop {
            let settled = self.of.runtime.store.settle(std::slice::from_ref(&settlement)).await;
            match settled.and_then(|mut answers| answers.remove(0)) {
                // An earlier call whose answer was lost has settled it.
                Err(error) if unknown && error.kind() == ErrorKind::LeaseLost => return Ok(()),
                Err(error)
                    if (error.is_retryable() || error.kind() == ErrorKind::CommitUnknown)
                        && Instant::now() + pause < until =>
                {
                    unknown |= error.kind() == ErrorKind::CommitUnknown;
                    tracing::warn!(token = %self.lease.token, %error, ?pause, "settlement failed, retrying");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(SETTLE_PAUSE_MAX);
                }
                settled => return settled,
            }
        }
    }

    /// Acks everything in the lease's range except offsets with another outcome.
    fn settlement(&self, outcomes: &[(Offset, Outcome)]) -> Settlement {
        let parked = self.parked.iter().map(|(offset, key)| (*offset, Outcome::Park { key: key.clone() }));
        let others = parked.chain(outcomes.iter().cloned()).collect();
        Settlement::each(&self.lease, fill_with_acks(self.lease.range, others))
    }
}

/// The range split into parts: the given outcomes, and acks for everything between.
fn fill_with_acks(range: OffsetRange, mut others: Vec<(Offset, Outcome)>) -> Vec<(OffsetRange, Outcome)> {
    others.sort_by_key(|(offset, _)| *offset);
    let mut parts = Vec::with_capacity(others.len() * 2 + 1);
    let mut next = range.first;
    for (offset, outcome) in others {
        if next < offset {
            parts.push((OffsetRange::new(next, Offset(offset.0 - 1)), Outcome::Ack));
        }
        parts.push((OffsetRange::one(offset), outcome));
        next = Offset(offset.0 + 1);
    }
    if next <= range.last {
        parts.push((OffsetRange::new(next, range.last), Outcome::Ack));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_covered_exactly_once() {
        let bury = |offset| (Offset(offset), Outcome::Bury { error: String::new() });
        let parts =
            fill_with_acks(OffsetRange::new(Offset(10), Offset(20)), vec![bury(20), bury(10), bury(15)]);
        let covered: Vec<i64> = parts.iter().flat_map(|(range, _)| range.first.0..=range.last.0).collect();
        assert_eq!(covered, (10..=20).collect::<Vec<_>>());
        assert_eq!(parts.iter().filter(|(_, outcome)| *outcome == Outcome::Ack).count(), 2);
    }
}
