//! Claims for clients that live elsewhere: messages are handed out under leases that belong to no process, and are settled by ticket through any
//! process of the store. A server hands them to its clients over HTTP.
//!
//! Why that is never wrong:
//!
//! - **Fencing.** A [`Ticket`] names token, subscription and holder of its lease, and offsets. The store compares all of them and the deadline in the
//!   statement that settles or extends: a ticket whose lease ended, was settled or was handed to another changes nothing and is `lost`. No token is
//!   issued twice in any history, so no ticket ever fits another lease. Nothing of a ticket is trusted: changed in any way it fits no lease, or one
//!   that its client holds anyway. Holders have 128 random bits, so it cannot be made up; and [`Claims::settle`] refuses tickets of other groups.
//! - **Owner.** The holder is the owner of the lease and never sends a heartbeat. So it has no row among the owners, and neither silence nor a
//!   lost proof of life ends its leases ([`Delivery::heartbeat`](crate::store::Delivery::heartbeat)): the process that claimed may die, and the client
//!   continues through another one.
//! - **Expiry.** Every lease has a deadline by the database's clock, at most 366 days away. A client that vanished is found by it, and its messages are
//!   handed out again as of a crashed owner: in ever smaller ranges, so that a message that crashes its clients becomes a dead letter alone.
//!   A suspect range goes to an owner that holds nothing else: a client that takes many leases at once keeps one holder for all of them.
//! - **Life of the group.** The process names the group in its heartbeats while clients wait and until the last lease that it handed out is over.
//!   If it dies, so may the group be after its heartbeat timeout, and the next claim resurrects it, as for any group.
//! - **Order.** In a lane a lease is reduced to its own messages before they are handed out, and a message that is retried or released takes the later
//!   ones of its key along: their tickets are lost then, and they are handed out after it.
//! - **Lost answers.** A claim whose caller is gone releases what it got. One that is answered into a broken connection leaves its leases to their
//!   deadlines. A settlement that is repeated finds its ticket lost and changes nothing.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Mutex, oneshot};
use tokio::time::Instant;

use super::ConsumerBuilder;
use super::group::Group;
use super::pull::{cancelled, revive};
use super::runtime::Runtime;
use super::settings::GroupSettings;
use crate::Headwater;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::{Gate, Inside};
use crate::lease::{ClaimRequest, OffsetRange, Want};
use crate::limits::{CLAIM_MESSAGES_MAX, DELAY_MAX, SAFETY_POLL};
use crate::message::Message;
use crate::name::{GroupName, TopicName};
use crate::store::Store;
use crate::subscription::{Outstanding, OutstandingState, Subscription, SubscriptionState};

mod hand_out;
mod settle;
mod ticket;

use hand_out::Handed;
pub use settle::Settled;
pub use ticket::{Holder, Ticket};

/// The lease where the group's never ends: a client that is gone would keep its messages for ever.
const LEASE_UNENDING: Duration = Duration::from_secs(300);
/// How soon a claim is repeated that brought leases without a message again and again.
const EMPTY_AGAIN: Duration = Duration::from_millis(20);
/// How many ranges are read to find what a holder has.
const HELD_RANGES_MAX: u32 = 10_000;

/// Claims of one group for clients that live elsewhere; from [`Headwater::claims`](crate::Headwater::claims). Cheap to clone: any number of callers
/// share it, and those that wait cost no query each.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// # use std::time::Duration;
/// use headwater::consumer::{ClaimOptions, Holder, Settled, Ticket};
/// use headwater::settle::Verdict;
/// use headwater::{Headwater, Start};
///
/// let headwater = Headwater::in_memory().await?;
/// headwater.producer("orders").send(&7).await?;
/// headwater.groups("orders").subscribe("email", Start::Beginning).await?;
///
/// let claims = headwater.claims("orders", "email").await?;
/// let claimed = claims.claim(Holder::new(), &ClaimOptions::at_most(10)).await?;
/// assert_eq!(claimed[0].message.payload, "7");
/// let text = claimed[0].ticket.to_string(); // for the client
///
/// let ticket: Ticket = text.parse()?; // from the client, maybe in another process
/// let settled = claims.settle(&[(ticket.clone(), Verdict::Done)]).await?;
/// assert_eq!(settled, [Settled::Settled]);
/// assert_eq!(claims.settle(&[(ticket, Verdict::Done)]).await?, [Settled::Lost]);
/// # headwater.close().await }
/// ```
#[derive(Clone, Debug)]
pub struct Claims(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    runtime: Arc<Runtime>,
    group: Arc<Group>,
    gate: Arc<Gate>,
    /// Held by the one caller that waits for a wake-up; the others queue for it.
    turn: Mutex<()>,
}

/// What a claim asks for.
#[derive(Clone, Copy, Debug)]
pub struct ClaimOptions {
    /// Messages at most.
    pub messages_max: u32,
    /// Bytes of messages at most, except for a single larger one.
    pub bytes_max: usize,
    /// How long the leases last; `None` for the group's lease time.
    pub lease: Option<Duration>,
    /// How long to wait if there is nothing.
    pub wait: Duration,
}

impl ClaimOptions {
    /// At most this many messages and 8 MiB, with the group's lease time, without waiting.
    pub fn at_most(messages_max: u32) -> Self {
        ClaimOptions { messages_max, bytes_max: 8 * 1024 * 1024, lease: None, wait: Duration::ZERO }
    }

    fn validate(&self) -> Result<()> {
        if self.messages_max == 0 || self.messages_max > CLAIM_MESSAGES_MAX {
            return Err(Error::invalid("max", format!("must be from 1 to {CLAIM_MESSAGES_MAX}")));
        }
        self.lease.map_or(Ok(()), check_lease)
    }
}

fn check_lease(lease: Duration) -> Result<()> {
    if lease.is_zero() || lease > DELAY_MAX {
        return Err(Error::invalid("lease", "must be above 0 and at most 366 days"));
    }
    Ok(())
}

/// A message that was handed out.
#[derive(Clone, Debug)]
pub struct ClaimedMessage {
    /// The right to settle it.
    pub ticket: Ticket,
    /// The message.
    pub message: Message,
    /// When its lease ends.
    pub lease_until: Timestamp,
}

/// The result of one claim.
enum Claimed {
    Messages(Vec<ClaimedMessage>),
    /// Nothing; how long to wait at most before the next one.
    Nothing(Duration),
}

impl Headwater {
    /// Claims of a group for clients that live elsewhere. `NoSuchSubscription` if the group does not exist: this creates none.
    pub async fn claims(&self, topic: &str, group: &str) -> Result<Claims> {
        let names = (TopicName::new(topic)?, GroupName::new(group)?);
        let subscription = self.store().subscription(&names.0, &names.1).await?;
        let runtime = self.runtime()?;
        let metrics = self.metrics().group(&names.0, &names.1);
        let builder = ConsumerBuilder::new(self.clone(), topic, group);
        let settings = GroupSettings { pulled: true, ..builder.settings(&subscription) };
        let settler = runtime.settler.clone();
        let group = Arc::new(Group::new(
            subscription,
            settings,
            Default::default(),
            settler,
            Arc::default(),
            metrics,
        ));
        // Its lag is measured by surveys.
        group.take_moved();
        runtime.serve(Arc::clone(&group));
        let gate = Arc::clone(self.opened());
        Ok(Claims(Arc::new(Shared { runtime, group, gate, turn: Mutex::default() })))
    }
}

impl Claims {
    /// The subscription that it claims for.
    pub fn subscription(&self) -> &Subscription {
        &self.0.group.subscription
    }

    /// Whether the subscription was cancelled or removed: a group of the same name needs another one of these.
    pub fn is_over(&self) -> bool {
        self.0.group.serve_state.ended().is_some()
    }

    /// Messages for a holder, at once if there are any, else after at most `wait`. None if nothing came in time, or while the group is
    /// paused. Dropping the call is safe: what it may have claimed is released.
    ///
    /// A cancelled subscription is `InvalidTransition`, a removed one `NoSuchSubscription`.
    pub async fn claim(&self, holder: Holder, options: &ClaimOptions) -> Result<Vec<ClaimedMessage>> {
        options.validate()?;
        let deadline = Instant::now() + options.wait.min(DELAY_MAX);
        let in_use = self.enter()?;
        if let Claimed::Messages(messages) = self.attempt(holder, *options).await? {
            return Ok(messages);
        }
        if options.wait.is_zero() {
            return Ok(Vec::new());
        }
        let _turn = tokio::select! {
            biased;
            () = in_use.inside.closing() => return Err(self.closed()),
            turn = self.0.turn.lock() => turn,
            () = tokio::time::sleep_until(deadline) => return Ok(Vec::new()),
        };
        loop {
            // Armed before the claim that finds nothing: no wake-up is missed.
            let wake = self.store().arm(&[self.subscription().topic.topic_id]).await?;
            let recheck_after = match self.attempt(holder, *options).await? {
                Claimed::Messages(messages) => return Ok(messages),
                Claimed::Nothing(recheck_after) => recheck_after,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Vec::new());
            }
            tokio::select! {
                () = in_use.inside.closing() => return Err(self.closed()),
                _ = wake.wait(left.min(recheck_after)) => {}
            }
        }
    }

    /// Whether callers wait, or leases that were handed out here may not be over, or that was so a heartbeat interval ago: heartbeats name the group.
    pub fn is_used(&self) -> bool {
        self.0.group.serve_state.is_used()
    }

    /// What a holder has under valid leases, whichever process handed it out and settled the rest. Offsets without a message are among them if they are
    /// settled with one. `None` if the group has more than 10,000 outstanding ranges: not all are read then. For connections with a limit on unsettled
    /// messages.
    pub async fn held(&self, holder: Holder) -> Result<Option<Vec<OffsetRange>>> {
        let owner = holder.owner();
        let ranges = self.store().outstanding(self.subscription().subscription_id, HELD_RANGES_MAX).await?;
        if ranges.len() >= HELD_RANGES_MAX as usize {
            return Ok(None);
        }
        let is_held = |range: &Outstanding| {
            range.owner.as_ref() == Some(&owner) && range.state == OutstandingState::Leased
        };
        Ok(Some(ranges.into_iter().filter(is_held).map(|range| range.range).collect()))
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.0.runtime.store
    }

    /// In use from now on, and for as long as the result exists.
    fn enter(&self) -> Result<InUse> {
        self.0.check()?;
        let inside = self.0.gate.enter().ok_or_else(|| self.closed())?;
        if self.0.group.serve_state.enter() {
            self.0.runtime.request.now();
        }
        Ok(InUse { group: Arc::clone(&self.0.group), inside })
    }

    fn closed(&self) -> Error {
        let Subscription { topic, group, .. } = self.subscription();
        Error::new(ErrorKind::Closed, format!("claims of topic {}, group {group} were shut down", topic.name))
    }

    /// One claim, in a task of its own: a caller that is dropped does not lose what it brings.
    async fn attempt(&self, holder: Holder, options: ClaimOptions) -> Result<Claimed> {
        let (answer, answered) = oneshot::channel();
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move {
            // A result that is not taken releases its leases when it is dropped.
            let _ = answer.send(shared.claim(holder, &options).await);
        });
        let (claimed, handed) = answered.await.map_err(|_| self.closed())??;
        handed.taken();
        Ok(claimed)
    }
}

impl Shared {
    fn check(&self) -> Result<()> {
        let Subscription { topic, group, .. } = &*self.group.subscription;
        match self.group.serve_state.ended() {
            None => Ok(()),
            Some(super::EndReason::Cancelled) => Err(cancelled(&self.group.subscription)),
            Some(_) => Err(Error::no_such_subscription(topic.name.as_str(), group.as_str())),
        }
    }

    /// The lease time of a claim.
    fn lease_for(&self, asked: Option<Duration>) -> Duration {
        let group = || Some(self.group.lease_for()).filter(|lease| !lease.is_zero());
        asked.or_else(group).unwrap_or(LEASE_UNENDING)
    }

    /// Claims and reads. Leases without a message are done, and the next claim follows, at most once for each lane and a few more.
    async fn claim(&self, holder: Holder, options: &ClaimOptions) -> Result<(Claimed, Handed)> {
        let lease_for = self.lease_for(options.lease);
        let subscription = &self.group.subscription;
        let want =
            Want { lease: Some(lease_for), ..Want::new(subscription.subscription_id, options.messages_max) };
        let request = ClaimRequest { owner: holder.owner(), wants: vec![want] };
        for _ in 0..subscription.lanes + 10 {
            let asked_at = Instant::now();
            let claimed = self.runtime.store.claim(&request).await?;
            claimed.used_up.iter().for_each(|used_up| self.group.guard.used_up(used_up));
            if claimed.leases.is_empty() {
                let inactive = claimed.inactive.first().map(|(_, state)| *state);
                let recheck_after = claimed.recheck_after.unwrap_or(SAFETY_POLL).min(SAFETY_POLL);
                return Ok((self.inactive(inactive, asked_at, recheck_after).await?, Handed::default()));
            }
            self.group.note_state(SubscriptionState::Active, asked_at);
            self.group.serve_state.use_until(asked_at + lease_for);
            let mut handed = Handed::new(&self.runtime.store, claimed.leases);
            let messages = handed.read(&self.group, holder, options).await?;
            if !messages.is_empty() {
                return Ok((Claimed::Messages(messages), handed));
            }
            handed.taken();
        }
        Ok((Claimed::Nothing(EMPTY_AGAIN), Handed::default()))
    }

    /// What a claim without leases means.
    async fn inactive(
        &self,
        state: Option<SubscriptionState>,
        asked_at: Instant,
        recheck_after: Duration,
    ) -> Result<Claimed> {
        match state {
            Some(SubscriptionState::Cancelled) => return Err(cancelled(&self.group.subscription)),
            Some(SubscriptionState::Dead) => {
                let revived = revive(&self.runtime, &self.group).await?;
                let again = if revived { EMPTY_AGAIN } else { super::heartbeat::REQUEST_AGAIN };
                return Ok(Claimed::Nothing(again));
            }
            state => {
                self.group.note_state(state.unwrap_or_default(), asked_at);
            }
        }
        Ok(Claimed::Nothing(recheck_after))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.runtime.remove_group(&self.group);
    }
}

/// A group in use: heartbeats name it while this exists, and the end of its handle waits for it.
#[derive(Debug)]
struct InUse {
    group: Arc<Group>,
    inside: Inside,
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.group.serve_state.leave();
    }
}
