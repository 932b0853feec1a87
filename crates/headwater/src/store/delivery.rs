//! What programs ask of a store: publish, subscribe, hand out, settle, live. Part of the contract of a [`Store`](super::Store).

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::{FetchBound, Fetched, Wake};
use crate::error::Result;
use crate::lease::{ClaimRequest, Claimed, LeaseId, OffsetRange};
use crate::message::{Message, NewMessage, Published};
use crate::name::{GroupName, Owner, TopicName};
use crate::settle::Settlement;
use crate::subscription::{Activity, MissedMessages, Start, Subscription, SubscriptionId, SubscriptionState};
use crate::topic::{TopicId, TopicSettings};

/// Messages on their way: what producers, consumers and periodic jobs call.
#[async_trait]
pub trait Delivery: fmt::Debug + Send + Sync + 'static {
    /// Subscribes a group. Idempotent: a group that exists keeps its place whatever `start` says; a dead one is
    /// resurrected, a paused one stays paused, a cancelled one is left behind and a new one made. A queue takes one group
    /// only: naming another is `InvalidInput`. A topic that does not exist is treated as by [`Delivery::publish`].
    /// `Start::Now` is exact: what commits after this returned is delivered, what was committed before it was called
    /// is not. In reference counting the 65th group is `InvalidInput`.
    async fn subscribe(&self, topic: &TopicName, group: &GroupName, start: Start) -> Result<Subscription>;

    /// Publishes all of `messages`, or nothing; answers in their order once they are durable. A topic that does not
    /// exist is created as a queue if the store was opened with `auto_create`, and is `NoSuchTopic` otherwise. A pub/sub
    /// topic that blocks writes on zero subscriptions is `NoSubscriptions` while none counts.
    async fn publish(&self, topic: &TopicName, messages: &[NewMessage]) -> Result<Vec<Published>>;

    /// Hands out work, of active subscriptions only: a want of one that is not gets nothing and is named in
    /// [`Claimed::inactive`]. For each other want, first what is due again (expired, retry due, given back, late), else the next
    /// offsets up to the head. The leases of a want span at most `messages_max` offsets together (an ordered
    /// subscription counts `messages_max` times its lanes, of which one in `lanes` is the holder's). Two claims never
    /// share an offset of a subscription while both leases live.
    ///
    /// A range whose holder vanished is `suspect`: it is handed out in ever smaller parts, only to an owner that holds
    /// nothing else of the subscription, and that owner gets nothing else until it is settled. So a message that kills
    /// its worker is found alone, and is buried when its attempts are used up; its neighbours go through.
    ///
    /// [`Claimed::epoch`] names the history that the leases are of: it changes when a crash, a failover, a restored copy or
    /// a replaced file may have taken back what was committed.
    ///
    /// The limits of a want hold over all owners and processes that name them: no more messages are leased at any
    /// time, and none are handed out faster, redeliveries included. A claim held back by one says when to look again.
    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed>;

    /// Of these subscriptions, each for which a claim may find something now or later, or that is not active: one read for all
    /// that wait. An engine may name more, and by default names all.
    async fn claimable(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<SubscriptionId>> {
        Ok(subscriptions.to_vec())
    }

    /// The messages of a closed range, by offset. Reads only; offsets that never came to be are left out.
    async fn fetch(&self, topic: TopicId, range: OffsetRange) -> Result<Vec<Message>> {
        Ok(self.fetch_within(topic, range, FetchBound::NONE).await?.messages)
    }

    /// The same from the first offset of the range on, for as long as messages fit the bound. What does not fit is not
    /// brought into memory: its size is known before its payload is read.
    async fn fetch_within(&self, topic: TopicId, range: OffsetRange, bound: FetchBound) -> Result<Fetched>;

    /// Settles leases, each for itself and each all or nothing: `Err(LeaseLost)` where the token is unknown, old or
    /// past its deadline, belongs to another owner or subscription, or a part is not held under it, and then nothing of that lease changes. A buried message is
    /// in the dead letters in the same transaction.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Result<()>>>;

    /// Gives leases this long from now. `Err(LeaseLost)` as in [`Delivery::settle`]; zero means never reassigned.
    async fn extend(&self, leases: &[LeaseId], lease: Duration) -> Result<Vec<Result<()>>>;

    /// The owner says that it is alive and that it serves these subscriptions, and no others any more. One call for all of a
    /// process's groups: a group lives while an owner that serves it does, and its last heartbeat is the newest of
    /// those owners'. The time is the database's. Any number of owners of one group never wait for each other, nor for claims: each
    /// writes rows of its own.
    ///
    /// Answers in their order how each subscription is. A dead one is resurrected. A paused one stays so. Of cancelled and unknown
    /// ones nothing changes.
    ///
    /// Leases of other owners end whose last heartbeat is longer ago than `silent_for`, at once, whatever their deadline, also those
    /// that never end by themselves. They are then as if expired: lost to their holder, handed out again as suspect
    /// with the attempt counted, and waiters for their topics are woken. An owner that was only stopped finds its leases lost at its next
    /// heartbeat, and continues. A lease that is being settled or extended at this moment is left to the next heartbeat.
    ///
    /// An owner that never sent a heartbeat is left alone, and so is one whose heartbeats had no `silent_for` since it last departed:
    /// its leases end at their deadlines. A heartbeat without ends no leases.
    async fn heartbeat(
        &self,
        owner: &Owner,
        silent_for: Option<Duration>,
        served: &[Served],
    ) -> Result<Heartbeat>;

    /// The owner leaves on purpose: its heartbeat is forgotten. Its leases stay what they are.
    async fn depart(&self, owner: &Owner) -> Result<()>;

    /// The owner proves that its process lives, and ends the leases of processes that have ended, long before they are silent for
    /// too long: as [`Delivery::heartbeat`] ends them. Returns how many leases ended. Call it about every half second
    /// beside the heartbeat; while nothing has ended it only reads.
    ///
    /// A proof is what the kernel takes back when a process ends, and not before: a session (PostgreSQL), the lock of a file
    /// (the embedded engine). A process that is slow or stopped has it, and only silence ends its leases. One whose session was cut
    /// has a second and a half to connect again or to take its proof back, by any connection, and loses nothing. An owner
    /// without a heartbeat proves nothing, and an owner without a proof is judged by silence alone.
    async fn take_over(&self, owner: &Owner) -> Result<u64>;

    /// Says that somebody is about to wait for these topics. Call it, claim once more, and only then wait: whatever
    /// commits after that claim looked wakes the returned [`Wake`], or was announced by `recheck_after`.
    async fn arm(&self, topics: &[TopicId]) -> Result<Wake>;

    /// What holds for each of these subscriptions: its topic's settings, with its group's policy applied. One read for a process
    /// that serves many. Those that are cancelled or removed are left out.
    async fn settings_of(
        &self,
        subscriptions: &[SubscriptionId],
    ) -> Result<Vec<(SubscriptionId, TopicSettings)>>;

    /// The last tick fired of a periodic job, to the millisecond. On first use `first` is recorded and returned: ticks
    /// after it count.
    async fn cron_last(&self, job: &str, first: Timestamp) -> Result<Timestamp>;

    /// Fires a tick of a periodic job: publishes the message exactly once per job and tick, whichever process comes
    /// first, and never for a tick at or before the last one. The job moves forward and the message is published in one
    /// transaction, so a publish that fails leaves the tick to be fired. `None` if another fired it. A job that nobody
    /// asked for begins with this tick.
    async fn cron_fire(
        &self,
        job: &str,
        tick: Timestamp,
        topic: &TopicName,
        message: &NewMessage,
    ) -> Result<Option<Published>>;
}

/// A subscription that an owner serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// The subscription.
    pub subscription_id: SubscriptionId,
    /// What the owner has done for it.
    pub activity: Activity,
}

impl Served {
    /// A subscription for which nothing was done yet.
    pub fn new(subscription_id: SubscriptionId) -> Self {
        Served { subscription_id, activity: Activity::default() }
    }
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// How many leases of other owners ended by it.
    pub ended: u64,
    /// How each subscription is that the owner serves, in their order.
    pub signals: Vec<Signal>,
}

/// How a subscription is, for an owner that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Go on.
    Active,
    /// It was dead and is active again since this heartbeat; this is what it missed.
    Resurrected(MissedMessages),
    /// Hand out nothing until further notice.
    Paused,
    /// Stop: it was cancelled.
    Cancelled,
    /// Stop: there is no such subscription.
    Gone,
}

/// A state for the answers of processes.
impl Signal {
    /// The pulse of a stored state.
    pub(crate) fn of(state: SubscriptionState) -> Self {
        match state {
            SubscriptionState::Active | SubscriptionState::Dead => Signal::Active,
            SubscriptionState::Paused => Signal::Paused,
            SubscriptionState::Cancelled => Signal::Cancelled,
        }
    }
}
