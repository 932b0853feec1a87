//! Handling: a leased batch of messages, what a handler says of each, and the settlement that follows.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::consumer::InUse;
use crate::error::Result;
use crate::lease::{Lease, OffsetRange, Outcome, Settlement};
use crate::message::{Message, Offset};
use crate::settle::{RetryPolicy, Verdict, outcomes_of, own_messages};

/// The pause before a settlement is repeated, and the longest one.
const SETTLE_PAUSE: Duration = Duration::from_millis(50);
const SETTLE_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long it is repeated for a lease that never ends by itself.
const SETTLE_FOR_GOOD: Duration = Duration::from_secs(300);

/// Messages leased to this consumer, to be settled as a whole or one by one.
#[derive(Debug)]
pub struct Batch {
    /// While somebody has it, its group is in use.
    of: InUse,
    lease: Lease,
    /// To be handled, offsets rising.
    messages: Vec<Message>,
    /// Of keys that wait for an older message: given back unhandled.
    parked: Vec<(Offset, String)>,
    lease_for: Duration,
    policy: RetryPolicy,
}

impl Batch {
    pub(crate) fn new(of: InUse, lease: Lease, lease_for: Duration, messages: Vec<Message>) -> Self {
        let (messages, parked) = own_messages(&lease, of.group.subscription.lanes, messages);
        let policy = of.group.policy();
        Batch { of, lease, messages, parked, lease_for, policy }
    }

    /// The messages, offsets rising.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Which hand-out of these messages this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.lease.attempt
    }

    /// The lease behind the batch.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Everything is done. One DELETE, whatever the size.
    pub async fn ack(self) -> Result<()> {
        let settlement =
            if self.parked.is_empty() { Settlement::ack_all(self.lease.token) } else { self.settlement(&[]) };
        self.settle(settlement).await?;
        self.count(&[]);
        Ok(())
    }

    /// Gives everything back unhandled: due at once, not counted as an attempt.
    pub async fn release(self) -> Result<()> {
        let settlement = Settlement::each(self.lease.token, vec![(self.lease.range, Outcome::Release)]);
        // Not repeated: what is not given back comes again at the deadline.
        self.of.runtime.store.settle(&[settlement]).await?.remove(0)
    }

    /// Settles with a verdict on some messages; those not named are done.
    ///
    /// In an ordered subscription later messages of a key that failed are given back too, so that they come after it:
    /// do not handle them. [`Batch::handle`] sees to that.
    pub async fn settle_each(self, verdicts: Vec<(Offset, Verdict)>) -> Result<()> {
        let outcomes = outcomes_of(&self.lease, &self.messages, verdicts, &self.policy);
        self.settle(self.settlement(&outcomes)).await?;
        self.count(&outcomes);
        Ok(())
    }

    /// Gives the holder the lease's full time again, from now.
    pub async fn extend(&self) -> Result<()> {
        self.of.runtime.store.extend(&[self.lease.token], self.lease_for).await?.remove(0)
    }

    /// Handles the messages one after the other and settles them: extends the lease at a third of its time, and keeps
    /// order per key where the subscription asks for it.
    pub async fn handle<H, F>(self, mut handler: H) -> Result<()>
    where
        H: FnMut(Message, u32) -> F,
        F: Future<Output = Verdict>,
    {
        let mut verdicts = Vec::new();
        let mut failed_keys = HashSet::new();
        for message in &self.messages {
            let key = message.key.as_ref().filter(|_| self.lease.lane.is_some());
            if key.is_some_and(|key| failed_keys.contains(key)) {
                continue;
            }
            let verdict = self.keep_while(handler(message.clone(), self.lease.attempt)).await?;
            if matches!(verdict, Verdict::Done | Verdict::Skip) {
                continue;
            }
            if let Some(key) = key
                && !matches!(verdict, Verdict::Bury(_))
            {
                failed_keys.insert(key.clone());
            }
            verdicts.push((message.offset, verdict));
        }
        self.settle_each(verdicts).await
    }

    /// Awaits a handler while extending the lease. An error here means that the lease is lost: stop, others have it.
    async fn keep_while<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::pin!(work);
        if self.lease_for.is_zero() {
            return Ok(work.await);
        }
        let mut beat = tokio::time::interval(self.lease_for / 3);
        beat.tick().await;
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                _ = beat.tick() => self.extend().await?,
            }
        }
    }

    /// Repeats what meets a database that is locked or away for as long as the lease can still be held: the work is done,
    /// and giving up would have it done again. Past its deadline the store refuses the token.
    async fn settle(&self, settlement: Settlement) -> Result<()> {
        let for_good = self.lease_for.is_zero();
        let until = Instant::now() + if for_good { SETTLE_FOR_GOOD } else { self.lease_for };
        let mut pause = SETTLE_PAUSE;
        loop {
            let settled = self.of.runtime.store.settle(std::slice::from_ref(&settlement)).await;
            match settled.and_then(|mut answers| answers.remove(0)) {
                Err(error) if error.is_retryable() && Instant::now() + pause < until => {
                    tracing::warn!(token = %self.lease.token, %error, ?pause, "settling failed, trying again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(SETTLE_PAUSE_MAX);
                }
                settled => return settled,
            }
        }
    }

    /// Counts what became of the messages: all are done but those of another outcome.
    fn count(&self, outcomes: &[(Offset, Outcome)]) {
        let group = &self.of.group;
        group.metrics.acked.add((self.messages.len() - outcomes.len()) as u64);
        outcomes.iter().for_each(|(_, outcome)| group.count(outcome));
    }

    /// Everything in the lease's range is acked except what has another outcome.
    fn settlement(&self, outcomes: &[(Offset, Outcome)]) -> Settlement {
        let parked = self.parked.iter().map(|(offset, key)| (*offset, Outcome::Park { key: key.clone() }));
        let others = parked.chain(outcomes.iter().cloned()).collect();
        Settlement::each(self.lease.token, fill_with_acks(self.lease.range, others))
    }
}

/// The range cut into parts: the given outcomes, and acks for everything between.
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
