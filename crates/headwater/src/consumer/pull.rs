//! Consuming in the program's own loop: claims, fetches, waits, and hands out batches to be settled by the caller.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::Batch;
use super::group::Group;
use super::heartbeat::REQUEST_AGAIN;
use super::listed::{Held, List, Listed};
use super::member::Members;
use super::runtime::Runtime;
use super::settings::GroupSettings;

use crate::error::{Error, ErrorKind, Result};
use crate::gate::{Gate, Inside};
use crate::lease::{ClaimRequest, Want};
use crate::lease_thread::LeaseThread;
use crate::limits::{DELAY_MAX, SAFETY_POLL};
use crate::message::{Message, Offset};
use crate::name::Owner;
use crate::observe::metrics::GroupMetrics;
use crate::store::{FetchBound, Signal, Store};
use crate::subscription::{Subscription, SubscriptionState};

/// Hands out batches one by one, for programs with their own loop;
/// [`ConsumerBuilder::run`](super::ConsumerBuilder::run) does everything itself.
///
/// While it is used it sends heartbeats for its group, with its activity: while a call waits for a batch or a batch is
/// not settled, and for a heartbeat interval after that. A consumer that is kept and not used keeps no group alive.
#[derive(Debug)]
pub struct Consumer {
    /// Its own: with the owner of its leases and its heartbeats.
    runtime: Arc<Runtime>,
    pub(super) group: Arc<Group>,
    batch: u32,
    /// Leases claimed together with the one handed out last.
    list: List,
    /// Calls and batches are inside; closed by the end of the handle.
    gate: Arc<Gate>,
}

/// A group in use: heartbeats name it while this exists, and the end of its handle waits for it.
#[derive(Debug)]
pub(super) struct InUse {
    pub(super) runtime: Arc<Runtime>,
    pub(super) group: Arc<Group>,
    inside: Inside,
}

impl InUse {
    /// `None` if the handle has ended.
    fn new(consumer: &Consumer) -> Option<Self> {
        let Consumer { runtime, group, gate, .. } = consumer;
        let inside = gate.enter()?;
        if group.serve_state.enter() {
            runtime.request.now();
        }
        Some(InUse { runtime: Arc::clone(runtime), group: Arc::clone(group), inside })
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.group.serve_state.leave();
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
        // Its leases last until their deadlines, however long a program with its own loop does not poll the runtime.
        let runtime = Runtime::start(Arc::clone(&thread), Arc::clone(&store), owner, None, None);
        let (members, settler) = (Members::default(), runtime.settler.clone());
        let group = Group::new(subscription, settings, members, settler, Arc::default(), metrics);
        let group = Arc::new(group);
        // Its lag is not measured here.
        group.take_moved();
        runtime.serve(Arc::clone(&group));
        Consumer { runtime, group, batch, list: List::new(thread, store), gate: Arc::default() }
    }

    /// Ends when this gate closes.
    pub(super) fn inside(self, gate: Arc<Gate>) -> Self {
        Consumer { gate, ..self }
    }

    /// The subscription it serves.
    pub fn subscription(&self) -> &Subscription {
        &self.group.subscription
    }

    /// The next batch, or `None` if nothing came in time. Reads first, then waits: messages that exist are returned at
    /// once.
    ///
    /// Settle a batch before taking the next one, or hold several; a batch that is never settled is redelivered when
    /// its lease expires. A batch has at least nine tenths of its lease's time left. Leases claimed together with it
    /// that have waited for a third of that time, because the program is slow to call again, are released for other
    /// processes.
    ///
    /// While the subscription is paused nothing comes, and this continues to wait. A dead one is resurrected by the
    /// call. A cancelled one is `InvalidTransition`, a removed one `NoSuchSubscription`: open another consumer. Once
    /// the handle is [shut down](crate::Headwater::shutdown) it is `Closed`.
    pub async fn next(&mut self, at_most: Duration) -> Result<Option<Batch>> {
        self.next_unless(at_most, std::future::pending()).await
    }

    /// The same, or `None` once `stop` completes: for programs that shut down gracefully. Dropping [`Consumer::next`]
    /// instead may leave a lease behind that no code holds, until its deadline; this never stops in the middle of a
    /// claim. Close the consumer afterwards, and other processes can claim the rest at once.
    pub async fn next_unless(
        &mut self,
        at_most: Duration,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<Batch>> {
        tokio::pin!(stop);
        let deadline = Instant::now() + at_most.min(DELAY_MAX);
        let waits = InUse::new(self);
        // Held to the end: waiting leases are handed out, extended or released by one task at a time.
        let mut listed = self.list.hold().await;
        let Some(waits) = waits else { return Err(self.shut_down(listed).await) };
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return Ok(None),
                () = waits.inside.closing() => return Err(self.shut_down(listed).await),
                () = std::future::ready(()) => {}
            }
            // Removed from the list only once its messages are read: an error or a dropped call loses no lease.
            while let Some((mut lease, lease_for)) = listed.front().await? {
                let bound = FetchBound::at_least_one(self.group.settings.buffer_bytes_max);
                let fetched = self.runtime.store.fetch_within(lease.topic_id, lease.range, bound).await?;
                if listed.is_old() {
                    // The read took too long, or the process was stopped: the next round releases it.
                    continue;
                }
                if let Some(unread) = fetched.left {
                    if !listed.cut(unread).await? {
                        continue;
                    }
                    lease.range.last = Offset(unread.first.0 - 1);
                }
                let Some(of) = InUse::new(self) else { return Err(self.shut_down(listed).await) };
                // Left out of the batch: the settlement of its lease acks them.
                let is_wanted = |message: &Message| !self.group.guard.drops_expired(message);
                let messages = fetched.messages.into_iter().filter(is_wanted).collect();
                let batch = Batch::new(of, lease, lease_for, listed.since(), messages);
                let batch = self.hand_out(batch).await?;
                listed.pop();
                if batch.is_some() {
                    return Ok(batch);
                }
            }
            if self.claim(&mut listed).await?.is_none() {
                continue;
            }
            // Nothing found: arm the wake, claim once more, and only then wait.
            let wake = self.runtime.store.arm(&[self.subscription().topic.topic_id]).await?;
            let Some(recheck_after) = self.claim(&mut listed).await? else { continue };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            tokio::select! {
                () = &mut stop => return Ok(None),
                () = waits.inside.closing() => {}
                _ = wake.wait(left.min(recheck_after)) => {}
            }
        }
    }

    /// Claims; `None` if it got something or may now, else how long to wait at most.
    async fn claim(&self, listed: &mut Listed) -> Result<Option<Duration>> {
        let lease_for = self.group.lease_for();
        let want = Want {
            // Explicit, so that the store need not read the topic's.
            lease: Some(lease_for),
            ..Want::new(self.subscription().subscription_id, self.batch)
        };
        let request = ClaimRequest { owner: self.runtime.owner.clone(), wants: vec![want] };
        let asked_at = Instant::now();
        let claimed = self.runtime.store.claim(&request).await?;
        claimed.used_up.iter().for_each(|used_up| self.group.guard.used_up(used_up));
        if !claimed.leases.is_empty() {
            self.group.note_state(SubscriptionState::Active, asked_at);
            listed.fill(claimed.leases, lease_for, asked_at);
            return Ok(None);
        }
        for (_, state) in claimed.inactive {
            match state {
                SubscriptionState::Active | SubscriptionState::Paused => {
                    self.group.note_state(state, asked_at);
                }
                SubscriptionState::Dead => {
                    let revived = revive(&self.runtime, &self.group).await?;
                    return Ok((!revived).then_some(REQUEST_AGAIN));
                }
                SubscriptionState::Cancelled => return Err(cancelled(self.subscription())),
            }
        }
        Ok(Some(claimed.recheck_after.map_or(SAFETY_POLL, |after| after.min(SAFETY_POLL))))
    }

    /// The handle has ended: releases what was claimed and not handed out.
    async fn shut_down(&self, mut listed: Held<'_>) -> Error {
        let (topic, group) = (&self.subscription().topic.name, &self.subscription().group);
        if let Err(error) = listed.give_back().await {
            tracing::debug!(%topic, %group, %error, "leases not released, they expire at their deadline");
        }
        Error::new(ErrorKind::Closed, format!("consumer of topic {topic}, group {group} was shut down"))
    }

    /// Counts a batch as delivered; `None` if it has no message, or none of its lane: then it is settled right away.
    async fn hand_out(&self, batch: Batch) -> Result<Option<Batch>> {
        let (metrics, count) = (&self.group.metrics, batch.messages().len() as u64);
        metrics.delivered.add(count);
        if batch.lease().suspect {
            metrics.reassigned.add(count);
        }
        if batch.messages().is_empty() {
            return match batch.ack().await {
                // Lost meanwhile: it has no message to handle, and the next one is taken.
                Err(error) if error.kind() != ErrorKind::LeaseLost => Err(error),
                _ => Ok(None),
            };
        }
        Ok(Some(batch))
    }

    /// Releases what was claimed and not handed out, and departs. The group keeps its position; other processes can
    /// claim the rest at once.
    pub async fn close(self) -> Result<()> {
        self.list.hold().await.give_back().await?;
        // While a batch is held the owner continues its heartbeats; it is found silent once it has ended.
        if self.group.serve_state.users() == 0 {
            self.runtime.dismiss(&self.group, true).await;
        }
        Ok(())
    }
}

/// Sends a heartbeat that names a dead subscription, which resurrects it. False if that has to be repeated.
pub(super) async fn revive(runtime: &Runtime, group: &Arc<Group>) -> Result<bool> {
    let subscription = &group.subscription;
    let (topic, name) = (&subscription.topic.name, &subscription.group);
    match runtime.report(group).await? {
        Some(Signal::Cancelled) => Err(cancelled(subscription)),
        Some(Signal::Gone) => Err(Error::no_such_subscription(topic.as_str(), name.as_str())),
        Some(Signal::Resurrected(missed)) => {
            tracing::warn!(%topic, group = %name, missed = missed.count, "dead subscription resurrected");
            Ok(true)
        }
        Some(Signal::Dead) => Ok(false),
        Some(Signal::Active | Signal::Paused) | None => Ok(true),
    }
}

pub(super) fn cancelled(subscription: &Subscription) -> Error {
    let (topic, group) = (&subscription.topic.name, &subscription.group);
    Error::new(
        ErrorKind::InvalidTransition,
        format!(
            "topic {topic}, group {group} was cancelled; open another consumer to create a new subscription"
        ),
    )
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;
