//! The boundary between messaging and a database. Its docs are the contract; `conformance` checks it per engine.
//!
//! The boundary is at messaging operations and never at SQL execution: SQLite and PostgreSQL are different algorithms
//! for the same promises.

use std::any::Any;
use std::sync::Arc;

use crate::error::Result;

pub(crate) mod actor;
mod admin;
mod checked;
#[cfg(feature = "conformance")]
pub mod conformance;
mod delivery;
mod fetched;
mod maintenance;
pub(crate) mod options;
#[cfg(feature = "postgres")]
pub mod postgres;
pub(crate) mod repository;
#[cfg(any(test, feature = "conformance"))]
pub(crate) mod rng;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod schema;
pub(crate) mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod tracking;
pub(crate) mod wake;

pub use admin::{Ack, Admin, AuditEntry, CronStatus, Finding, ForceCompleted, Moved, Resurrected, Stuck};
pub use checked::Checked;
pub use delivery::{CronDescription, Delivery, Head, Heartbeat, Served, Signal};
pub(crate) use fetched::Weighing;
pub use fetched::{FetchBound, Fetched};
pub use maintenance::{
    CleanStep, Detected, EntryRetention, EntryStep, Maintained, Maintenance, PartitionStep, RECORDS_EXAMINED,
    SubscriptionStep, Survey, SurveyedGroup, SurveyedTopic,
};
pub use options::OpenOptions;
pub use tracking::{Record, TrackStep, Tracking};
pub use wake::Wake;

// Types that engines take and return, and that operators read.
pub use crate::backfill::{
    BACKFILL_INLINE_MAX, BACKFILL_MESSAGES_DEFAULT, Backfill, BackfillLimits, BackfillPace, BackfillState,
    BackfillStep,
};
pub use crate::dead_letter::{
    AllDeadLetters, AnyDeadLetter, AnyDeadLetterSelection, DeadLetter, DeadLetterPlace, DeadLetterSelection,
    DeadLetterSource, FoundDeadLetter, GroupDeadLetters, HEADER_EDITED_FOR, HEADER_EDITED_FROM,
    ParkedCommand, Redriven,
};
pub use crate::groups::{
    AllGroups, FoundGroup, GroupHealth, GroupPlace, GroupSelection, MessageStatus, Removed,
};
pub use crate::lease::{
    ClaimRequest, Claimed, Epoch, HandOut, Lease, LeaseId, LeaseToken, OffsetRange, UsedUp, Want,
    attempts_after_expiry, hand_out_again,
};
pub use crate::maintenance::{JobRun, JobStatus};
pub use crate::name::Owner;
pub use crate::namespace::{Namespace, SqlitePath, StoreUrl};
pub use crate::observe::attention::Figures;
pub use crate::scheduled::{Reschedule, Scheduled, ScheduledPlace};
pub use crate::settle::{Outcome, Parts, Settlement};
pub use crate::subscription::{
    Activity, BURIED_MANY, HealthIssue, LATELY, MessageAct, MessageState, MissedMessages, NewSubscription,
    Outstanding, OutstandingState, STUCK_AFTER, Subscription, SubscriptionId, SubscriptionStatus, Transition,
};
pub use crate::topic::{Progress, Topic, TopicId, TopicStatus};
pub use crate::topics::TopicSelection;

/// A durable log with subscriptions, in some database.
///
/// Promises of every engine, for any interleaving of processes, crashes and retries:
///
/// - **Durable**: a publish that returned `Ok` survives a crash of everything.
/// - **Atomic**: a publish is stored as a whole or not at all; messages of a rolled-back transaction are never
///   delivered.
/// - **Never skipped**: every subscription gets every message committed after its start, in whatever order transactions
///   commit.
/// - **Never duplicated without a fault**: a message is handed out again only if a lease expired, or the message was
///   released or retried.
/// - **Fenced**: a token changes nothing once its lease was handed out again or its deadline has passed.
/// - **Independent**: nothing one subscription does delays or hides a message from another.
/// - **Rising**: offsets of a topic rise and are never reused, not even after everything was removed.
///
/// Every method may be called from many tasks concurrently. An error leaves nothing half done.
pub trait Store: Delivery + Admin + Maintenance + Any {}

impl<S: Delivery + Admin + Maintenance> Store for S {}

impl dyn Store {
    /// The SQLite engine, if this is it: for operations that only it has, such as handling in its own transaction.
    #[cfg(feature = "sqlite")]
    pub fn as_sqlite(&self) -> Option<&sqlite::SqliteStore> {
        (self as &dyn Any).downcast_ref().map(Checked::engine_ref)
    }

    /// The PostgreSQL engine, if this is it: for operations that only it has, such as handling in its own transaction.
    #[cfg(feature = "postgres")]
    pub fn as_postgres(&self) -> Option<&postgres::PostgresStore> {
        (self as &dyn Any).downcast_ref().map(Checked::engine_ref)
    }

    /// The same store for another actor of changes.
    pub(crate) fn acting_as(&self, actor: &str) -> Arc<dyn Store> {
        #[cfg(feature = "sqlite")]
        if let Some(checked) = (self as &dyn Any).downcast_ref::<Checked<sqlite::SqliteStore>>() {
            return Arc::new(checked.acting_as(actor));
        }
        #[cfg(feature = "postgres")]
        if let Some(checked) = (self as &dyn Any).downcast_ref::<Checked<postgres::PostgresStore>>() {
            return Arc::new(checked.acting_as(actor));
        }
        unreachable!("{} has no actors", self.engine())
    }
}

/// Opens the store of a URL, with these options.
pub async fn open(url: &str, options: OpenOptions) -> Result<Arc<dyn Store>> {
    use crate::namespace::StoreUrl;
    match StoreUrl::parse(url, options.namespace.as_deref())? {
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(path) => {
            let name = path.to_string();
            Ok(Arc::new(Checked::new(sqlite::SqliteStore::open(path, options).await?, name)))
        }
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres { url, namespace, replica } => {
            let name = format!("namespace {namespace}");
            let store = postgres::PostgresStore::open(&url, namespace, options.clone()).await?;
            Ok(Arc::new(Checked::new(store.with_replica(replica.as_deref(), &options)?, name)))
        }
        #[allow(unreachable_patterns)]
        _ => Err(crate::Error::invalid(
            "store",
            "this build has no engine for that scheme; enable its feature",
        )),
    }
}
