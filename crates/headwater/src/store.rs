//! The boundary between messaging and a database. Its docs are the contract; `conformance` proves it per engine.
//!
//! The cut is at messaging operations and never at SQL execution: SQLite and PostgreSQL are different algorithms for
//! the same promises.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::error::Result;
use crate::message::{Message, NewMessage, Published};
use crate::name::{GroupName, Owner, TopicName};
use crate::subscription::Start;
use crate::topic::TopicSettings;

mod checked;
#[cfg(feature = "conformance")]
pub mod conformance;
mod fetched;
mod lifecycle;
pub(crate) mod options;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod schema;
pub(crate) mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod upkeep;
pub(crate) mod wake;

pub use checked::Checked;
pub(crate) use fetched::Weighing;
pub use fetched::{FetchBound, Fetched};
pub use lifecycle::{
    Ack, AuditEntry, Beat, ForceCompleted, Lifecycle, Moved, Pulse, Record, Resurrected, Stuck,
};
pub use options::OpenOptions;
pub use upkeep::{CleanStep, Detected, PartitionStep, SubscriptionStep, TrackStep, Upkeep};
pub use wake::Wake;

// What engines take and answer, and what operators read.
pub use crate::backfill::{
    BACKFILL_INLINE_MAX, BACKFILL_MESSAGES_DEFAULT, Backfill, BackfillLimits, BackfillPace, BackfillState,
    BackfillStep,
};
pub use crate::dead_letter::{DeadLetter, DeadLetterSelection, Redriven};
pub use crate::groups::{GroupHealth, Removed};
pub use crate::lease::{
    ClaimRequest, Claimed, Epoch, HandOut, Lease, LeaseId, LeaseToken, OffsetRange, Want,
    attempts_after_expiry, hand_out_again,
};
pub use crate::maintain::{JobRun, JobStatus};
pub use crate::namespace::{Namespace, SqlitePath, StoreUrl};
pub use crate::settle::{Outcome, Parts, Settlement};
pub use crate::subscription::{
    Activity, Ailment, MissedMessages, Outstanding, OutstandingState, STUCK_AFTER, Subscription,
    SubscriptionId, SubscriptionStatus, Transition,
};
pub use crate::topic::{Progress, Topic, TopicId, TopicStatus};

/// A durable log with subscriptions, in some database.
///
/// What every engine promises, whatever the interleaving of processes, crashes and retries:
///
/// - **Durable**: a publish that returned `Ok` survives a crash of everything.
/// - **Atomic**: a publish is there whole or not at all; what a rolled-back transaction published is never seen.
/// - **Never skipped**: every subscription gets every message committed after its start, whatever the order in which
///   transactions commit.
/// - **Never doubled without a fault**: a message is handed out again only if a lease expired, was given back, or was
///   retried.
/// - **Fenced**: a token changes nothing once its lease was handed out again or its deadline has passed.
/// - **Independent**: nothing one subscription does delays or hides a message from another.
/// - **Rising**: offsets of a topic rise and are never reused, not even after everything was removed.
///
/// Every method may be called from many tasks at once. Errors leave nothing half done.
#[async_trait]
pub trait Store: Lifecycle + Upkeep + fmt::Debug + Send + Sync + 'static {
    /// The engine's name: `sqlite` or `postgres`.
    fn engine(&self) -> &'static str;

    /// The embedded engine, if this is it: for what only it can do, such as handling in its own transaction.
    #[cfg(feature = "sqlite")]
    fn as_sqlite(&self) -> Option<&sqlite::SqliteStore> {
        None
    }

    /// The PostgreSQL engine, if this is it: for what only it can do, such as handling in its own transaction.
    #[cfg(feature = "postgres")]
    fn as_postgres(&self) -> Option<&postgres::PostgresStore> {
        None
    }

    /// Creates a topic, or returns the one that is there. Safe when many processes do it at once; a topic with other
    /// settings is a `Conflict` and stays as it is.
    async fn create_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic>;

    /// The topic of this name, or `NoSuchTopic`.
    async fn topic(&self, name: &TopicName) -> Result<Topic>;

    /// All topics by name.
    async fn topics(&self) -> Result<Vec<TopicStatus>>;

    /// Subscribes a group. Idempotent: a group that exists keeps its place whatever `start` says; a dead one is
    /// resurrected, a paused one stays paused, a cancelled one is left behind and a new one made. A queue takes one group
    /// only: naming another is `InvalidInput`. A topic that does not exist is treated as by [`Store::publish`].
    /// `Start::Now` is exact: what commits after this returned is delivered, what was committed before it was called
    /// is not. In reference counting the 65th group is `InvalidInput`.
    async fn subscribe(&self, topic: &TopicName, group: &GroupName, start: Start) -> Result<Subscription>;

    /// The subscriptions of a topic, by group; cancelled ones too, until they are removed. Of one name the living one is
    /// first, then the cancelled ones, the last made first.
    async fn subscriptions(&self, topic: &TopicName) -> Result<Vec<SubscriptionStatus>>;

    /// What a subscription has handed out and is not done: leased, waiting for a time, parked. At most `limit`, oldest due
    /// first; what never ends by itself comes late, and what is parked last, since it waits for others and not for a
    /// time. Reads only, so what it tells may have changed meanwhile. Nothing for an unknown subscription.
    async fn outstanding(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<Outstanding>>;

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

    /// Gives leases this long from now. `Err(LeaseLost)` as in [`Store::settle`]; zero means never reassigned.
    async fn extend(&self, leases: &[LeaseId], lease: Duration) -> Result<Vec<Result<()>>>;

    /// The owner says that it is alive, and hands on what belonged to the dead: the leases of owners that have beaten
    /// before and have now been silent for longer than `silent_for` end at once, whatever their deadline, also those
    /// that never end by themselves. They are then as if expired: lost to their holder, handed out again as suspect
    /// with the attempt counted, and whoever waits for their topics is woken. Returns how many leases ended.
    ///
    /// An owner that never beat is left alone. One that was only paused and beats again finds its leases lost, and
    /// goes on. A lease that is being settled or extended at this moment is left to the next beat.
    async fn heartbeat(&self, owner: &Owner, silent_for: Duration) -> Result<u64>;

    /// The owner leaves on purpose: its heartbeat is forgotten. Its leases stay what they are.
    async fn depart(&self, owner: &Owner) -> Result<()>;

    /// Says that somebody is about to wait for these topics. Call it, claim once more, and only then wait: whatever
    /// commits after that claim looked wakes the returned [`Wake`], or was announced by `recheck_after`.
    async fn arm(&self, topics: &[TopicId]) -> Result<Wake>;

    /// One round of upkeep: advances heads, hands out late rows, promotes due messages, forgets old dedup keys
    /// and inbox entries.
    /// Claims do the same on demand for their own topics.
    async fn maintain(&self) -> Result<Maintained>;

    /// The dead letters of a selection, oldest first, at most `limit`.
    async fn dead_letters(&self, selection: &DeadLetterSelection, limit: u32) -> Result<Vec<DeadLetter>>;

    /// Hands dead letters to their subscription again, to no other: due now, without attempts, not suspect, and of an
    /// ordered subscription before later messages of their key. A letter goes and its message becomes outstanding in
    /// one transaction, a bounded number at a time, so redriving twice, also at once, delivers once. Those whose
    /// message is not in the log any more stay and are counted. What is buried meanwhile is not part of it.
    async fn redrive(&self, selection: &DeadLetterSelection) -> Result<Redriven>;

    /// Removes dead letters for good, a bounded number at a time; how many.
    async fn purge(&self, selection: &DeadLetterSelection) -> Result<u64>;

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

    /// Checks the invariants of everything stored. An empty answer means that nothing is off.
    async fn doctor(&self) -> Result<Vec<Finding>>;

    /// Removes everything of this namespace, for good, and closes the store.
    async fn drop_namespace(&self) -> Result<()>;

    /// Stops background work and lets go of connections. Further calls are `Closed`.
    async fn close(&self) -> Result<()>;
}

/// What one round of upkeep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Delayed messages promoted into their log.
    pub promoted: u64,
    /// Late rows handed to subscriptions.
    pub late: u64,
    /// Gaps closed because their owners ended without a row.
    pub gaps_closed: u64,
    /// Dedup keys forgotten.
    pub dedup_forgotten: u64,
    /// Inbox entries forgotten.
    pub inbox_forgotten: u64,
}

/// Something that is off in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which check found it.
    pub check: &'static str,
    /// What is off, with identity.
    pub problem: String,
    /// What would mend it.
    pub remedy: String,
}

/// Opens the store a URL names, with these options.
pub async fn open(url: &str, options: OpenOptions) -> Result<std::sync::Arc<dyn Store>> {
    use crate::namespace::StoreUrl;
    match StoreUrl::parse(url, options.namespace.as_deref())? {
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(path) => {
            let name = format!("{path:?}");
            Ok(std::sync::Arc::new(Checked::new(sqlite::SqliteStore::open(path, options).await?, name)))
        }
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres { url, namespace } => {
            let name = format!("namespace {namespace}");
            Ok(std::sync::Arc::new(Checked::new(
                postgres::PostgresStore::open(&url, namespace, options).await?,
                name,
            )))
        }
        #[allow(unreachable_patterns)]
        _ => Err(crate::Error::invalid(
            "store",
            "this build has no engine for that scheme; enable its feature",
        )),
    }
}
