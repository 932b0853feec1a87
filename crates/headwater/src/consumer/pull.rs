//! Consuming by hand: claims, fetches, waits, and hands out batches to be settled by the caller.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::Batch;
use super::group::Group;
use super::listed::{List, Listed};
use super::member::Members;
use super::runtime::Runtime;
use super::settings::GroupSettings;

use crate::error::{Error, ErrorKind, Result};
use crate::lease::{ClaimRequest, Lease, Want};
use crate::lease_thread::LeaseThread;
use crate::limits::{DELAY_MAX, SAFETY_POLL};
use crate::message::{Message, Offset};
use crate::name::Owner;
use crate::observe::metrics::GroupMetrics;
use crate::store::{FetchBound, Signal, Store};
use crate::subscription::{Subscription, SubscriptionState};

/// Takes batches one by one, for programs that drive themselves; [`ConsumerBuilder::run`](super::ConsumerBuilder::run) does the rest.
///
/// While it is used it says that its group lives, and what was done: while somebody waits for a batch or has one that is not
/// settled, and for a heartbeat interval after that. One that is kept and never asked again keeps no group alive.
#[derive(Debug)]
pub struct Consumer {
    /// Of its own: a name under which its leases are held, and what it says of itself.
    runtime: Arc<Runtime>,
    pub(super) group: Arc<Group>,
    batch: u32,
    /// Leases claimed together with the one handed out last.
    list: List,
}

/// A group in use: heartbeats say so while this is there.
#[derive(Debug)]
pub(super) struct InUse {
    pub(super) runtime: Arc<Runtime>,
    pub(super) group: Arc<Group>,
}

impl InUse {
    fn new(runtime: &Arc<Runtime>, group: &Arc<Group>) -> Self {
        if group.standing.enter() {
            runtime.look.ask_urgently();
        }
        InUse { runtime: Arc::clone(runtime), group: Arc::clone(group) }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.group.standing.leave();
    }
}

impl Consumer {
    pub(super) fn new(
        thread: Arc<LeaseThread>,
        store: Arc<dyn Store>,
        owner: Owner,
        subscription: Subscription,
        batch: u32,
        settings: GroupSettings,
        metrics: Arc<GroupMetrics>,
    ) -> Self {
        // Its leases last until their deadlines, however long a program that drives itself leaves the runtime alone.
        let runtime = Runtime::start(Arc::clone(&thread), Arc::clone(&store), owner, None, None);
        let (members, settler) = (Members::default(), runtime.settler.clone());
        let group = Group::new(subscription, settings, members, settler, Arc::default(), metrics);
        let group = Arc::new(group);
        // How far behind it is, is for whoever asks.
        group.take_moved();
        runtime.serve(Arc::clone(&group));
        Consumer { runtime, group, batch, list: List::new(thread, store) }
    }

    /// The subscription it serves.
    pub fn subscription(&self) -> &Subscription {
        &self.group.subscription
    }

    /// The next batch, or `None` if nothing came in time. First reads, then waits: what is there is given at once.
    ///
    /// Settle a batch before taking the next one, or hold several; what is never settled is handed to another member
    /// when its lease ends. A batch comes with nine tenths of its lease's time at least. What was claimed together with it and
    /// has waited for a third of that time, because the program is slow to ask again, is given back for others to have.
    ///
    /// While the subscription is paused nothing comes, and this goes on waiting. A dead one is brought back by asking. One
    /// that was cancelled is `InvalidTransition`, one that was removed `NoSuchSubscription`: open another consumer.
    pub async fn next(&mut self, at_most: Duration) -> Result<Option<Batch>> {
        self.next_unless(at_most, std::future::pending()).await
    }

    /// The same, or `None` once `stop` is there: for programs that end in order. Dropping [`Consumer::next`] instead may
    /// leave behind a lease that nobody knows of, until its deadline; this never stops halfway through a claim. Close the
    /// consumer afterwards, and others have the rest at once.
    pub async fn next_unless(
        &mut self,
        at_most: Duration,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<Batch>> {
        tokio::pin!(stop);
        let deadline = Instant::now() + at_most.min(DELAY_MAX);
        let _waits = InUse::new(&self.runtime, &self.group);
        // Held to the end: what waits is handed out, extended or given back by one at a time.
        let mut listed = self.list.hold().await;
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return Ok(None),
                () = std::future::ready(()) => {}
            }
            // Taken off the list only once its messages are here: an error or a dropped call loses no lease.
            while let Some((mut lease, lease_for)) = listed.front().await? {
                let bound = FetchBound::at_least_one(self.group.settings.buffer_bytes_max);
                let fetched = self.runtime.store.fetch_within(lease.topic_id, lease.range, bound).await?;
                if listed.is_old() {
                    // The read took so long, or the process was stopped: the next round gives it back.
                    continue;
                }
                if let Some(unread) = fetched.left {
                    if !listed.cut(unread).await? {
                        continue;
                    }
                    lease.range.last = Offset(unread.first.0 - 1);
                }
                let batch = self.batch_of(lease, lease_for, listed.since(), fetched.messages).await?;
                listed.pop();
                if batch.is_some() {
                    return Ok(batch);
                }
            }
            if self.claim(&mut listed).await?.is_none() {
                continue;
            }
            // Nothing there: say that we wait, look once more, and only then sleep.
            let wake = self.runtime.store.arm(&[self.subscription().topic.topic_id]).await?;
            let Some(recheck_after) = self.claim(&mut listed).await? else { continue };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            tokio::select! {
                () = &mut stop => return Ok(None),
                _ = wake.wait(left.min(recheck_after)) => {}
            }
        }
    }

    /// Claims; `None` if it got something or may now, else how long to wait at most.
    async fn claim(&self, listed: &mut Listed) -> Result<Option<Duration>> {
        let lease_for = self.group.lease_for();
        let want = Want {
            // Said outright: the store need not look the topic's up.
            lease: Some(lease_for),
            ..Want::new(self.subscription().subscription_id, self.batch)
        };
        let request = ClaimRequest { owner: self.runtime.owner.clone(), wants: vec![want] };
        let asked_at = Instant::now();
        let claimed = self.runtime.store.claim(&request).await?;
        if !claimed.leases.is_empty() {
            self.group.hear(SubscriptionState::Active);
            listed.fill(claimed.leases, lease_for, asked_at);
            return Ok(None);
        }
        for (_, state) in claimed.inactive {
            match state {
                SubscriptionState::Active | SubscriptionState::Paused => {
                    self.group.hear(state);
                }
                SubscriptionState::Dead => {
                    revive(&self.runtime, &self.group).await?;
                    return Ok(None);
                }
                SubscriptionState::Cancelled => return Err(cancelled(self.subscription())),
            }
        }
        Ok(Some(claimed.recheck_after.map_or(SAFETY_POLL, |after| after.min(SAFETY_POLL))))
    }

    /// A lease with its messages; `None` if none of them exists or is this lane's: then it is settled right away.
    async fn batch_of(
        &self,
        lease: Lease,
        lease_for: Duration,
        held_since: Instant,
        messages: Vec<Message>,
    ) -> Result<Option<Batch>> {
        let suspect = lease.suspect;
        let of = InUse::new(&self.runtime, &self.group);
        let batch = Batch::new(of, lease, lease_for, held_since, messages);
        let (metrics, count) = (&self.group.metrics, batch.messages().len() as u64);
        metrics.delivered.add(count);
        if suspect {
            metrics.reassigned.add(count);
        }
        if batch.messages().is_empty() {
            return match batch.ack().await {
                // Lost meanwhile: it has nothing to be handled, and the next one is taken.
                Err(error) if error.kind() != ErrorKind::LeaseLost => Err(error),
                _ => Ok(None),
            };
        }
        Ok(Some(batch))
    }

    /// Gives back what was claimed and not handed out, and takes its leave. The group keeps its place; others get the rest at
    /// once.
    pub async fn close(self) -> Result<()> {
        self.list.hold().await.give_back().await?;
        // Whoever still has a batch says that it lives, and is found silent when it is gone.
        if self.group.standing.users() == 0 {
            self.runtime.dismiss(&self.group, true).await;
        }
        Ok(())
    }
}

/// Says that a dead subscription is served, which brings it back.
pub(super) async fn revive(runtime: &Runtime, group: &Arc<Group>) -> Result<()> {
    let subscription = &group.subscription;
    let (topic, name) = (&subscription.topic.name, &subscription.group);
    match runtime.tell(group).await? {
        Some(Signal::Cancelled) => Err(cancelled(subscription)),
        Some(Signal::Gone) => Err(Error::no_such_subscription(topic.as_str(), name.as_str())),
        Some(Signal::Resurrected(missed)) => {
            tracing::warn!(%topic, group = %name, missed = missed.count, "the group was dead and lives again");
            Ok(())
        }
        Some(Signal::Active | Signal::Paused) | None => Ok(()),
    }
}

fn cancelled(subscription: &Subscription) -> Error {
    let (topic, group) = (&subscription.topic.name, &subscription.group);
    Error::new(
        ErrorKind::InvalidTransition,
        format!(
            "topic {topic}, group {group} was cancelled; open another consumer to make a new subscription"
        ),
    )
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;
