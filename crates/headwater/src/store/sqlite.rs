//! The embedded engine: one SQLite file.
//!
//! One thread writes (`writer.rs`), a few threads read (`reader.rs`), and one copies the write-ahead log into the file
//! (`checkpoint.rs`). Because only one transaction writes at a time, a topic's head is its last offset and there are
//! no gaps.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{ClaimRequest, Claimed, LeaseId, OffsetRange};
use crate::message::{NewMessage, Offset, Published};
use crate::name::{GroupName, Owner, TopicName};
use crate::namespace::SqlitePath;
use crate::settle::Settlement;
use crate::store::actor::Actor;
use crate::store::options::OpenOptions;
use crate::store::wake::{Hub, Wake};
use crate::store::{Admin, CronDescription, Delivery, FetchBound, Fetched, Head, Heartbeat, Served};
use crate::subscription::{NewSubscription, Subscription, SubscriptionId};
use crate::topic::{TopicId, TopicSettings};

use self::connection::{Location, Role};
use self::fault::Attempt;
use self::reader::Readers;
use self::trust::Trust;
use self::watch::{Watch, Watched};
use self::work::{BoxCommand, Job, Kind, Work};
use self::writer::{Commands, SyncPolicy, Writer};

/// A statement from its `.sql` file.
macro_rules! sql {
    ($verb:ident) => {
        sql!($verb.$verb)
    };
    ($verb:ident.$name:ident) => {
        crate::store::sql::from_file!("sqlite", $verb, $name)
    };
}
use sql;

mod acks;
mod admin;
mod advance_heads;
mod audit;
mod calls;
mod checkpoint;
mod claim;
mod clean;
mod clock;
mod connection;
mod cron;
mod dead_letter;
mod decode;
mod detect;
mod doctor;
mod driven;
mod epoch;
mod fault;
mod group;
mod heartbeat;
mod holder;
mod holes;
mod inspect;
mod jobs;
mod lanes;
mod log;
mod maintenance;
mod message;
mod migrate;
mod notice;
mod open;
mod outstanding;
mod parked;
mod patience;
mod policy;
mod process;
mod progress;
mod promote;
mod publish;
mod queue;
mod range;
mod ranges;
mod reader;
mod relay;
mod repository;
mod resurrect;
mod retire;
mod rivals;
mod schedule;
mod seek;
mod settle;
mod state;
mod status;
mod step_bytes;
mod stuck;
mod subscribe;
mod survey;
mod take_over;
mod token;
mod topic;
mod tracking;
mod transaction;
mod trust;
mod wal;
mod watch;
mod work;
mod writer;

#[cfg(test)]
mod tests;

pub(crate) use driven::{HandleNow, Open, Requests, ToPublish};
pub use migrate::{newest, version_of};
pub use publish::publish;
pub(crate) use repository::text as text_of;
pub(crate) use transaction::{Handlers, TransactionWork};

/// A message's row key has the offset in its low 43 bits and the topic id in the 20 bits above.
const OFFSET_BITS: u32 = 43;
/// The highest offset a topic can have.
const OFFSET_MAX: i64 = (1 << OFFSET_BITS) - 1;

/// The highest topic id, as the schema checks it.
const TOPIC_ID_MAX: i32 = (1 << (63 - OFFSET_BITS)) - 1;

/// The row key of a message: clustered by topic, then by offset.
fn row_key(topic: TopicId, offset: i64) -> i64 {
    (i64::from(topic.0) << OFFSET_BITS) | offset.clamp(0, OFFSET_MAX)
}

/// The offset in a message's row key.
fn offset_of(row_key: i64) -> i64 {
    row_key & OFFSET_MAX
}

/// Whole milliseconds, rounded up: a lease shorter than one millisecond must not become zero, which means no
/// deadline.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// The time from now until then; zero if it has passed.
fn until(at_ms: i64, now_ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(at_ms.saturating_sub(now_ms)).unwrap_or_default())
}

/// A stored deadline as a time; `None` for never.
fn deadline(due_at_ms: i64) -> Option<Timestamp> {
    Timestamp::from_millisecond(due_at_ms).ok()
}

/// A store in one SQLite file, or in memory.
#[derive(Debug)]
pub struct SqliteStore {
    location: Location,
    clock: Clock,
    auto_create: bool,
    /// The actor written to audit entries.
    actor: Actor,
    hub: Arc<Hub>,
    watched: Arc<Watched>,
    commands: Arc<Commands>,
    /// `None` in memory: the writer's connection is then the only one.
    readers: Option<Readers>,
    trust: Arc<Trust>,
    holes: Arc<holes::Holes>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    history: Arc<epoch::History>,
    proofs: Arc<take_over::Proofs>,
    /// How far cleanup is in each topic.
    passes: Mutex<HashMap<TopicId, clean::Pass>>,
    /// Set if the store is opened read-only; holds the file if it is read as it lies, without locks.
    read_only: Option<Option<inspect::Still>>,
}

impl SqliteStore {
    /// Opens a store; a missing or empty file is created, an older one migrated, anything else refused untouched.
    pub(crate) async fn open(path: SqlitePath, options: OpenOptions) -> Result<SqliteStore> {
        Self::open_watching(path, options, Watch::of).await
    }

    async fn open_watching(
        path: SqlitePath,
        options: OpenOptions,
        watch: fn(&Connection, Arc<Watched>) -> Watch,
    ) -> Result<SqliteStore> {
        let opening = tokio::task::spawn_blocking(move || Self::open_now(&path, &options, watch));
        opening
            .await
            .map_err(|error| Error::with_source(ErrorKind::Database, "opening the store panicked", error))?
    }

    fn open_now(
        path: &SqlitePath,
        options: &OpenOptions,
        watch: fn(&Connection, Arc<Watched>) -> Watch,
    ) -> Result<SqliteStore> {
        if options.read_only {
            return Self::open_read_only(path, options);
        }
        let location = Location::new(path)?;
        connection::inspect(&location, options)?;
        let mut connection = connection::open(&location, Role::Writer)?;
        migrate::migrate(&mut connection, &location.name, options.adopt)?;
        let stored = open::stored_auto_create(&connection, &location)?;
        let auto_create = options.auto_create.unwrap_or(stored);
        let trust = Trust::of(&connection, &location)?;
        let hub = Arc::new(Hub::default());
        let watched = Arc::new(Watched::default());
        let commands = Arc::new(Commands::new(writer::QUEUE_PLACES));
        let (readers, mut threads) = open::start_readers(&location, options.connections_max, &trust)?;
        let watch = match location.path {
            Some(_) => watch(&connection, Arc::clone(&watched)),
            None => Watch::none(),
        };
        let proofs = Arc::<take_over::Proofs>::default();
        let writer = Writer {
            checkpoints: open::start_checkpoints(&connection, &location, &trust)?,
            trust: Arc::clone(&trust),
            connection,
            location: location.clone(),
            commands: Arc::clone(&commands),
            hub: Arc::clone(&hub),
            clock: options.clock.clone(),
            memory: None,
            policy: SyncPolicy {
                publishes: options.sync_every_publish,
                settlements: options.durable_settlements,
            },
            watch,
            patience: options.statement_timeout,
            put_back: 0,
            _proofs: Arc::clone(&proofs),
            full: true,
        };
        // All connections are open. The check proves that each has the file that the path led to when the first one
        // was opened.
        trust.check()?;
        threads.push(writer.start().map_err(|error| open::no_thread(&location, error))?);
        let clock = options.clock.clone();
        Ok(SqliteStore {
            location,
            clock,
            auto_create,
            actor: Actor::new(&options.actor),
            hub,
            watched,
            commands,
            readers,
            trust,
            holes: Arc::default(),
            threads: Mutex::new(threads),
            history: Arc::default(),
            proofs,
            passes: Mutex::default(),
            read_only: None,
        })
    }

    /// Runs a command on the writer and waits until it is committed.
    async fn write<T: Send + 'static>(
        &self,
        kind: Kind,
        run: impl FnMut(&mut Work<'_>) -> Attempt<T> + Send + 'static,
    ) -> Result<T> {
        let (job, answer) = Job::new(kind, run);
        self.answer(Box::new(job), answer).await
    }

    async fn answer<T>(&self, command: BoxCommand, answer: oneshot::Receiver<Result<T>>) -> Result<T> {
        if self.read_only.is_some() {
            return Err(self.not_written());
        }
        if self.commands.push(command).await.is_err() {
            return Err(self.closed());
        }
        answer.await.unwrap_or_else(|_| Err(self.closed()))
    }

    fn closed(&self) -> Error {
        Error::new(ErrorKind::Closed, format!("the store has been closed: {}", self.location.name))
    }

    /// Ends all threads after the queued commands have run, and waits for the threads.
    async fn stop(&self) -> Result<()> {
        self.signal_stop();
        let threads = std::mem::take(&mut *self.threads.lock().expect("no panic while held"));
        let joining =
            tokio::task::spawn_blocking(move || threads.into_iter().all(|thread| thread.join().is_ok()));
        let joined = joining.await;
        // Not earlier: other processes would end leases whose settlements are still queued.
        self.proofs.release();
        match joined {
            Ok(true) => Ok(()),
            _ => Err(Error::new(ErrorKind::Database, format!("a thread panicked: {}", self.location.name))),
        }
    }

    fn signal_stop(&self) {
        self.commands.close();
        if let Some(readers) = &self.readers {
            readers.close();
        }
    }
}

impl Drop for SqliteStore {
    /// Dropping the last handle ends the threads too, without waiting for them.
    fn drop(&mut self) {
        self.signal_stop();
    }
}

#[async_trait]
impl Delivery for SqliteStore {
    async fn subscribe_with(
        &self,
        topic: &TopicName,
        group: &GroupName,
        new: &NewSubscription,
    ) -> Result<Subscription> {
        let subscribe = || {
            let (topic, group, new) = (topic.clone(), group.clone(), *new);
            self.write(Kind::Define, move |work| subscribe::subscribe(work, &topic, &group, &new))
        };
        match subscribe().await {
            Err(error) if error.kind() == ErrorKind::NoSuchTopic && self.auto_create => {
                self.create_topic(topic, &TopicSettings::default()).await?;
                subscribe().await
            }
            result => result,
        }
    }

    async fn publish(&self, topic: &TopicName, messages: &[NewMessage]) -> Result<Vec<Published>> {
        let (topic, messages, auto_create) = (topic.clone(), messages.to_vec(), self.auto_create);
        let prepared = publish::Prepared::batch(&messages);
        self.write(Kind::Publish, move |work| publish::run(work, &topic, auto_create, &messages, &prepared))
            .await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed> {
        let (request, history, watched) =
            (request.clone(), Arc::clone(&self.history), Arc::clone(&self.watched));
        let (job, answer) =
            Job::new(Kind::Consume, move |work| claim::claim(work, &request, &history, &watched.rivals));
        let (mut claimed, seen) = self.answer(Box::new(job.undo(claim::give_back)), answer).await?;
        claimed.epoch = self.history.note(seen, &self.location.name);
        Ok(claimed)
    }

    async fn fetch_within(&self, topic: TopicId, range: OffsetRange, bound: FetchBound) -> Result<Fetched> {
        let holes = Arc::clone(&self.holes);
        self.read(move |connection| holes.fetch(connection, topic, range, bound)).await
    }

    async fn held_keys(
        &self,
        topic: TopicId,
        lease: &LeaseId,
        from: Offset,
    ) -> Result<Vec<(Offset, String)>> {
        let lease = lease.clone();
        self.read(move |connection| {
            reader::at_once(connection, |snapshot| settle::held_keys(snapshot, topic, &lease, from))
        })
        .await
    }

    fn now(&self) -> Timestamp {
        self.clock.injected().unwrap_or_else(Timestamp::now)
    }

    async fn head(&self, topic: TopicId) -> Result<Option<Head>> {
        self.read(move |connection| log::head(connection, topic)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Result<()>>> {
        let (holes, settlements) = (Arc::clone(&self.holes), settlements.to_vec());
        self.write(Kind::Consume, move |work| holes.settle(work, &settlements)).await
    }

    async fn extend(&self, leases: &[LeaseId], lease: Duration) -> Result<Vec<Result<()>>> {
        let leases = leases.to_vec();
        self.write(Kind::Consume, move |work| settle::extend(work, &leases, lease)).await
    }

    async fn heartbeat(
        &self,
        owner: &Owner,
        silent_for: Option<Duration>,
        served: &[Served],
    ) -> Result<Heartbeat> {
        heartbeat::heartbeat(self, owner, silent_for, served).await
    }

    async fn depart(&self, owner: &Owner) -> Result<()> {
        heartbeat::leave(self, owner).await
    }

    async fn take_over(&self, owner: &Owner) -> Result<u64> {
        take_over::take_over(self, owner).await
    }

    async fn arm(&self, topics: &[TopicId]) -> Result<Wake> {
        self.trust.check_lately()?;
        // Armed before the watcher starts: a commit in between is found by its first check.
        let wake = self.hub.arm(topics);
        self.watched.add(topics);
        self.commands.nudge();
        Ok(wake)
    }

    async fn subscription(&self, topic: &TopicName, group: &GroupName) -> Result<Subscription> {
        let (topic, group) = (topic.clone(), group.clone());
        self.read(move |connection| {
            reader::at_once(connection, |snapshot| subscribe::get(snapshot, &topic, &group))
        })
        .await
    }

    async fn settings_of(
        &self,
        subscriptions: &[SubscriptionId],
    ) -> Result<Vec<(SubscriptionId, TopicSettings)>> {
        let subscriptions = subscriptions.to_vec();
        self.read(move |connection| {
            reader::at_once(connection, |snapshot| policy::settings_of(snapshot, &subscriptions))
        })
        .await
    }

    async fn cron_last(&self, job: &str, first: Timestamp) -> Result<Timestamp> {
        let job = job.to_owned();
        self.write(Kind::Define, move |work| cron::last(work, &job, first)).await
    }

    async fn cron_describe(&self, job: &CronDescription) -> Result<()> {
        let job = job.clone();
        self.write(Kind::Define, move |work| cron::describe(work, &job)).await
    }

    async fn cron_fire(
        &self,
        job: &str,
        tick: Timestamp,
        topic: &TopicName,
        message: &NewMessage,
    ) -> Result<Option<Published>> {
        let (job, topic, message, auto_create) =
            (job.to_owned(), topic.clone(), message.clone(), self.auto_create);
        self.write(Kind::Define, move |work| cron::fire(work, &job, tick, &topic, auto_create, &message))
            .await
    }
}
