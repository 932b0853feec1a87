//! Delivery: publish, subscribe, claim, settle, heartbeat. Part of the contract of a [`Store`](super::Store).

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::{FetchBound, Fetched, Wake};
use crate::error::Result;
use crate::lease::{ClaimRequest, Claimed, LeaseId, OffsetRange};
use crate::message::{Message, NewMessage, Offset, Published};
use crate::name::{GroupName, Owner, TopicName};
use crate::settle::Settlement;
use crate::subscription::{
    Activity, MissedMessages, NewSubscription, Start, Subscription, SubscriptionId, SubscriptionState,
};
use crate::topic::{TopicId, TopicSettings};

/// Delivery of messages: what producers, consumers and cron jobs call.
#[async_trait]
pub trait Delivery: fmt::Debug + Send + Sync + 'static {
    /// Subscribes a group. Idempotent: an existing group keeps its position whatever `start` is; a dead one is
    /// resurrected, a paused one stays paused, a cancelled one is left as it is and a new one is created. A queue has
    /// one group only: naming another is `InvalidInput`. A topic that does not exist is treated as by
    /// [`Delivery::publish`]. `Start::Now` is exact: what commits after this returned is delivered, what was committed
    /// before it was called is not. In reference counting the 65th group is `InvalidInput`.
    async fn subscribe(&self, topic: &TopicName, group: &GroupName, start: Start) -> Result<Subscription> {
        self.subscribe_with(topic, group, &NewSubscription::from(start)).await
    }

    /// The same, with the order, the delivery policy and the backfill of a new group. An existing group keeps its own,
    /// and the returned [`Subscription`] has them: `lanes`, and the topic's settings with the group's policy applied. A
    /// policy that the topic's settings would refuse is `InvalidInput`, also for an existing group.
    async fn subscribe_with(
        &self,
        topic: &TopicName,
        group: &GroupName,
        new: &NewSubscription,
    ) -> Result<Subscription>;

    /// The subscription of a group that is not cancelled, as [`Delivery::subscribe`] returns it; changes nothing. `NoSuchTopic` or
    /// `NoSuchSubscription` if it does not exist.
    async fn subscription(&self, topic: &TopicName, group: &GroupName) -> Result<Subscription>;

    /// Publishes all of `messages`, or nothing; returns their results in order once they are durable. A topic that does
    /// not exist is created as a queue if the store was opened with `auto_create`, and is `NoSuchTopic` otherwise. A
    /// pub/sub topic that blocks writes on zero subscriptions is `NoSubscriptions` while none counts.
    async fn publish(&self, topic: &TopicName, messages: &[NewMessage]) -> Result<Vec<Published>>;

    /// Hands out messages, of active subscriptions only: a want of another one gets nothing and is named in
    /// [`Claimed::inactive`]. Each other want gets first what is due again (expired, retry due, released, late), else
    /// the next offsets up to the head. The leases of a want span at most `messages_max` offsets together (an ordered
    /// subscription counts `messages_max` times its lanes, of which about one in `lanes` belongs to the lease). Two
    /// claims never share an offset of a subscription while both leases are valid.
    ///
    /// A range whose owner crashed is `suspect`: it is handed out in ever smaller ranges, only to an owner that holds
    /// nothing else of the subscription, and that owner gets nothing else until it is settled. So a message that
    /// crashes its process is isolated, and becomes a dead letter when its attempts are used up; the messages around it
    /// are delivered.
    ///
    /// [`Claimed::epoch`] names the history of the leases: it changes when a crash, a failover, a restored copy or a
    /// replaced file may have undone what was committed.
    ///
    /// The limits of a want hold across all owners and processes that name them: no more messages are leased at any
    /// time, and none are handed out faster, including redeliveries. A claim held back by a limit returns when to claim
    /// again.
    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed>;

    /// Of these subscriptions, each for which a claim may find something now or later, or that is not active: one read
    /// for all that wait. An engine may return more, and by default returns all.
    async fn claimable(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<SubscriptionId>> {
        Ok(subscriptions.to_vec())
    }

    /// The messages of a closed range, by offset. Reads only; offsets without a message are left out.
    async fn fetch(&self, topic: TopicId, range: OffsetRange) -> Result<Vec<Message>> {
        Ok(self.fetch_within(topic, range, FetchBound::NONE).await?.messages)
    }

    /// The same from the first offset of the range on, for as long as messages fit the bound. What does not fit is not
    /// loaded into memory: its size is known before its payload is read.
    async fn fetch_within(&self, topic: TopicId, range: OffsetRange, bound: FetchBound) -> Result<Fetched>;

    /// Offsets and keys of the messages with a key that a lease of this topic holds, from an offset on. Reads no payload, and nothing but
    /// what is outstanding under the token for its owner and subscription: nothing for an unknown lease. A lease past its deadline may be
    /// read; settling it fails.
    async fn held_keys(&self, topic: TopicId, lease: &LeaseId, from: Offset)
    -> Result<Vec<(Offset, String)>>;

    /// How far a topic can be read, without a group; `None` if there is no such topic. Advances the head where the caller may.
    /// On a standby, or with a role that only reads, the highest visible message counts instead, and messages below it may
    /// follow unannounced.
    async fn head(&self, topic: TopicId) -> Result<Option<Head>>;

    /// The time by the store's clock, as this process knows it, without a query: for what needs no exact time.
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// Settles leases, each independently and each all or nothing: `Err(LeaseLost)` where the token is unknown, old or
    /// past its deadline, belongs to another owner or subscription, or a range is not held under it; then nothing of
    /// that lease changes. A buried message becomes a dead letter in the same transaction.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Result<()>>>;

    /// Extends leases to this long from now. `Err(LeaseLost)` as in [`Delivery::settle`]; zero means that they never
    /// expire.
    async fn extend(&self, leases: &[LeaseId], lease: Duration) -> Result<Vec<Result<()>>>;

    /// Reports that the owner is alive and serves these subscriptions, and no others any more. One call for all groups
    /// of a process: a group lives while an owner that serves it does, and its last heartbeat is the newest of those
    /// owners'. The time is the database's. Owners of one group never wait for each other, nor for claims: each writes
    /// rows of its own.
    ///
    /// Returns the state of each subscription, in their order. A dead one is resurrected. A paused one stays paused.
    /// Cancelled and unknown ones are not changed.
    ///
    /// Leases of other owners whose last heartbeat is longer ago than `silent_for` end at once, whatever their
    /// deadline, also those that never expire. They are then as if expired: lost to their owner, handed out again as
    /// suspect with the attempt counted, and waiters for their topics are woken. An owner that was only stopped finds
    /// its leases lost at its next heartbeat, and continues. A lease that is being settled or extended at this moment
    /// is left to the next heartbeat.
    ///
    /// An owner that never sent a heartbeat is not judged, nor is an owner whose heartbeats had no `silent_for` since
    /// it last departed: its leases end at their deadlines. A heartbeat without `silent_for` ends no leases.
    async fn heartbeat(
        &self,
        owner: &Owner,
        silent_for: Option<Duration>,
        served: &[Served],
    ) -> Result<Heartbeat>;

    /// The owner departs: its heartbeat is deleted. Its leases are not changed.
    async fn depart(&self, owner: &Owner) -> Result<()>;

    /// Renews the owner's proof of life, and ends the leases of processes that have ended, long before silence would:
    /// in the same way as [`Delivery::heartbeat`]. Returns how many leases ended. Call it about every half second
    /// beside the heartbeat; while nothing has ended it only reads.
    ///
    /// A proof of life is what the kernel releases when a process ends, and not before: a session (PostgreSQL), the
    /// lock of a file (SQLite). A process that is slow or stopped keeps it, and only silence ends its leases. A process
    /// whose session was cut has a second and a half to connect again or to withdraw its proof, over any connection,
    /// and loses nothing. An owner without a heartbeat has no proof, and an owner without a proof is judged by silence
    /// alone.
    async fn take_over(&self, owner: &Owner) -> Result<u64>;

    /// Registers a waiter for these topics. Call it, claim once more, and only then wait: whatever commits after that
    /// claim read wakes the returned [`Wake`], or was announced by `recheck_after`.
    async fn arm(&self, topics: &[TopicId]) -> Result<Wake>;

    /// The settings of each of these subscriptions: its topic's, with its group's delivery policy applied. One read for
    /// a process that serves many. Cancelled and removed subscriptions are left out.
    async fn settings_of(
        &self,
        subscriptions: &[SubscriptionId],
    ) -> Result<Vec<(SubscriptionId, TopicSettings)>>;

    /// The last tick fired of a cron job, to the millisecond. On first use `first` is recorded and returned: ticks
    /// after it count.
    async fn cron_last(&self, job: &str, first: Timestamp) -> Result<Timestamp>;

    /// Stores what a cron job does, for operators: the last description of each job counts. Nothing is stored for a job
    /// without a call of [`Delivery::cron_last`].
    async fn cron_describe(&self, job: &CronDescription) -> Result<()>;

    /// Fires a tick of a cron job: publishes the message exactly once per job and tick, whichever process comes first,
    /// and never for a tick at or before the last one. The job moves forward and the message is published in one
    /// transaction, so a publish that fails leaves the tick to be fired. `None` if another process fired it. A job
    /// without a call of [`Delivery::cron_last`] begins with this tick.
    async fn cron_fire(
        &self,
        job: &str,
        tick: Timestamp,
        topic: &TopicName,
        message: &NewMessage,
    ) -> Result<Option<Published>>;
}

/// How far the offsets of a topic are final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Every message up to it can be fetched, except those in gaps; an offset without a message that is in no gap stays
    /// without one.
    pub offset: Offset,
    /// Offsets up to the head, rising, whose transactions are still open: a late message may appear there. It can be fetched
    /// once a later call names its offset no more.
    pub gaps: Vec<OffsetRange>,
    /// Whether to check again soon: offsets are taken by transactions whose commit may wake no waiter.
    pub pending: bool,
}

/// What a cron job does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronDescription {
    /// Its name.
    pub job: String,
    /// When it fires.
    pub expression: String,
    /// The time zone of the expression.
    pub time_zone: String,
    /// The topic of its messages.
    pub topic: TopicName,
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
    /// The state of each subscription that the owner serves, in their order.
    pub signals: Vec<Signal>,
}

/// The state of a subscription, for an owner that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Continue.
    Active,
    /// It was dead and is active again since this heartbeat; this is what it missed.
    Resurrected(MissedMessages),
    /// It is dead, and its locks were taken: the next heartbeat resurrects it.
    Dead,
    /// Hand out nothing until it is resumed.
    Paused,
    /// Stop: it was cancelled.
    Cancelled,
    /// Stop: the subscription does not exist.
    Gone,
}

/// Conversion from stored states.
impl Signal {
    /// The signal of a stored state.
    pub(crate) fn of(state: SubscriptionState) -> Self {
        match state {
            SubscriptionState::Active => Signal::Active,
            SubscriptionState::Dead => Signal::Dead,
            SubscriptionState::Paused => Signal::Paused,
            SubscriptionState::Cancelled => Signal::Cancelled,
        }
    }
}
