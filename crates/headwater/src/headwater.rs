//! The handle a program holds: opens a store, makes topics, producers and consumers.

use std::sync::{Arc, Mutex};

use crate::backfill::Backfill;
use crate::bridge::BridgePositions;
use crate::clock::Clock;
use crate::consumer::ConsumerBuilder;
use crate::consumer::runtime::{Runtime, SILENT_FOR};
#[cfg(feature = "cron")]
use crate::cron::CronBuilder;
use crate::dead_letter::{AllDeadLetters, DeadLetters};
use crate::error::Result;
use crate::gate::Gate;
use crate::groups::{AllGroups, Groups};
use crate::inbox::Inbox;
use crate::lease::{LeaseToken, OffsetRange};
use crate::lease_thread::LeaseThread;
use crate::maintenance::{Maintenance, MaintenanceSettings};
use crate::message::{Message, Offset};
use crate::namespace::Namespace;
use crate::observe::attention::Figures;
use crate::observe::metrics::Registry;
use crate::outbox::Outbox;
use crate::publish::Producer;
use crate::publish::replies::{Replier, Replies};
use crate::relays::Relays;
use crate::scheduled::ScheduledMessages;
use crate::store::CronStatus;
use crate::store::{self, AuditEntry, Finding, OpenOptions, Store};
use crate::subscription::Start;
use crate::tail::Tail;
use crate::tokens::Tokens;
use crate::topic::TopicStatus;
use crate::topics::Topics;

mod builder;
mod shutdown;

pub use builder::TopicBuilder;
use shutdown::Gates;

/// A namespace of topics in a database. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use std::time::Duration;
/// use headwater::{Headwater, NewMessage};
///
/// let headwater = Headwater::open("sqlite::memory:").await?;
/// headwater.producer("orders").send(NewMessage::new("first")).await?;
///
/// let mut consumer = headwater.consumer("orders", "email").open().await?;
/// let batch = consumer.next(Duration::from_secs(1)).await?.expect("one message waits");
/// assert_eq!(batch.messages()[0].payload, "first");
/// batch.ack().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Headwater {
    store: Arc<dyn Store>,
    metrics: Arc<Registry>,
    clock: Clock,
    /// The actor in audit entries and in the logs of processes.
    actor: Arc<str>,
    /// How maintenance runs while consumers run; `None` for not at all.
    maintenance: Option<MaintenanceSettings>,
    /// What running consumers share; made when the first one runs.
    runtime: Arc<Mutex<Option<Arc<Runtime>>>>,
    /// What else runs on it.
    gates: Arc<Gates>,
    /// The requests that wait for replies.
    replies: Arc<Replies>,
}

impl Headwater {
    /// Opens a store: `sqlite:path`, `sqlite::memory:` or `postgres://…`, each with an optional `?namespace=`.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, OpenOptions::default()).await
    }

    /// Opens an embedded store in memory, dropped with the handle: for tests.
    #[cfg(feature = "sqlite")]
    pub async fn in_memory() -> Result<Self> {
        Self::open("sqlite::memory:").await
    }

    /// Opens a store with options.
    pub async fn open_with(url: &str, options: OpenOptions) -> Result<Self> {
        let metrics = Arc::new(Registry::new(options.health_window));
        let (clock, actor) = (options.clock.clone(), Arc::from(options.actor.as_str()));
        // With a manual clock nothing runs by itself.
        let maintenance = options.maintenance.filter(|_| clock.injected().is_none());
        let store = store::open(url, options).await?;
        Ok(Headwater {
            store,
            metrics,
            clock,
            actor,
            maintenance,
            runtime: Arc::default(),
            gates: Arc::default(),
            replies: Arc::default(),
        })
    }

    /// The store of this handle, for authors of engines and tests. Programs and operators find all they need on the
    /// handle.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The namespace: on PostgreSQL the schema, by which plain SQL calls its functions. `None` on SQLite, where it is a file.
    pub fn namespace(&self) -> Option<&Namespace> {
        #[cfg(feature = "postgres")]
        if let Some(postgres) = self.store.as_postgres() {
            return Some(postgres.namespace());
        }
        None
    }

    /// The same handle for another actor: what is changed through it has that one in audit entries and in the logs of processes,
    /// instead of [`OpenOptions::actor`]. For a server, which acts for many callers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// headwater.producer("orders").send(&1).await?;
    /// headwater.groups("orders").subscribe("email", headwater::Start::Beginning).await?;
    /// headwater.acting_as("ann").groups("orders").pause("email").await?;
    /// assert_eq!(headwater.audit(1).await?[0].actor, "ann");
    /// # headwater.close().await }
    /// ```
    #[must_use]
    pub fn acting_as(&self, actor: &str) -> Headwater {
        Headwater { store: self.store.acting_as(actor), actor: actor.into(), ..self.clone() }
    }

    /// Describes a topic to create.
    pub fn topic(&self, name: &str) -> TopicBuilder {
        TopicBuilder::new(Arc::clone(&self.store), name)
    }

    /// The topics: list, progress and settings.
    pub fn topics(&self) -> Topics {
        Topics::new(Arc::clone(&self.store))
    }

    /// The groups of a topic: status, pause, resume, cancel, remove, resurrect, seek.
    pub fn groups(&self, topic: &str) -> Groups {
        Groups::new(Arc::clone(&self.store), self.clock.clone(), topic)
    }

    /// The groups of all topics: found by topic, state or a part of the name, page by page.
    pub fn all_groups(&self) -> AllGroups {
        AllGroups::new(Arc::clone(&self.store))
    }

    /// A producer for a topic: combines concurrent sends into few statements.
    pub fn producer(&self, topic: &str) -> Producer {
        let (gate, replies) = (Arc::clone(&self.gates.sends), Arc::clone(&self.replies));
        Producer::new(Arc::clone(&self.store), topic, &self.metrics, gate, replies)
    }

    /// Describes a consumer of a group on a topic.
    pub fn consumer(&self, topic: &str, group: &str) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone(), topic, group)
    }

    /// Describes a cron job: a message published once per tick, whichever processes run.
    ///
    /// ```no_run
    /// # async fn start(headwater: headwater::Headwater) -> headwater::Result<()> {
    /// let job = headwater
    ///     .cron("nightly-report", "0 2 * * *")
    ///     .time_zone("Europe/Berlin")
    ///     .topic("reports")
    ///     .message(&serde_json::json!({ "kind": "nightly" }))
    ///     .start()
    ///     .await?;
    /// job.stop().await;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "cron")]
    pub fn cron(&self, job: &str, expression: &str) -> CronBuilder {
        CronBuilder::new(
            Arc::clone(&self.store) as _,
            self.clock.clone(),
            Arc::clone(&self.metrics),
            Arc::clone(&self.gates.cron),
            job,
            expression,
        )
    }

    /// The maintenance jobs: heads, tracking, detection of dead groups, cleanup, partitions, backfills. A process that
    /// runs consumers runs them too, unless it was opened with [`OpenOptions::maintenance`] off; this handle runs them
    /// by hand, or in a process of their own.
    pub fn maintenance(&self) -> Maintenance {
        Maintenance::new(Arc::clone(&self.store) as _).inside(&self.gates.maintenance)
    }

    /// The gate of opened consumers.
    pub(crate) fn opened(&self) -> &Arc<Gate> {
        &self.gates.opened
    }

    pub(crate) fn actor(&self) -> &str {
        &self.actor
    }

    pub(crate) fn metrics(&self) -> &Registry {
        &self.metrics
    }

    /// What handlers of this handle reply with.
    pub(crate) fn replier(&self) -> Replier {
        Replier {
            store: Arc::clone(&self.store),
            metrics: Arc::clone(&self.metrics),
            replies: Arc::clone(&self.replies),
        }
    }

    /// What running consumers of this handle and its clones share.
    pub(crate) fn runtime(&self) -> Result<Arc<Runtime>> {
        let mut runtime = self.runtime.lock().expect("no panic while held");
        // A runtime whose tokio runtime was shut down serves no group any more.
        match runtime.as_ref().filter(|runtime| !runtime.settler.is_gone()) {
            Some(runtime) => Ok(Arc::clone(runtime)),
            None => {
                let (store, owner) = (Arc::clone(&self.store), Runtime::new_owner()?);
                let thread = LeaseThread::shared()?;
                let started = Runtime::start(thread, store, owner, Some(SILENT_FOR), self.maintenance);
                *runtime = Some(Arc::clone(&started));
                Ok(started)
            }
        }
    }

    /// Replaces what its consumers share, for tests.
    #[cfg(all(test, feature = "sqlite"))]
    pub(crate) fn set_runtime(&self, runtime: Arc<Runtime>) {
        *self.runtime.lock().expect("no panic while held") = Some(runtime);
    }

    /// Reads a topic from here on without a group: nothing is claimed or acked. `NoSuchTopic` if it does not exist; an offset
    /// beyond the head starts at the head.
    ///
    /// For inspection, and for readers that need no retries and no memory of their position: see [`Tail::next`].
    pub async fn tail(&self, topic: &str, start: Start) -> Result<Tail> {
        let topic = self.topics().get(topic).await?;
        Tail::open(Arc::clone(&self.store), topic, start).await
    }

    /// The scheduled messages of a topic: list, cancel, move.
    pub fn scheduled(&self, topic: &str) -> ScheduledMessages {
        ScheduledMessages::new(Arc::clone(&self.store), topic)
    }

    /// Everything published to a topic so far that is still stored, offsets rising: for tests and inspection.
    pub async fn published(&self, topic: &str) -> Result<Vec<Message>> {
        let topics = self.topics();
        topics.advance_heads().await?;
        let TopicStatus { topic, head, .. } = topics.status(topic).await?;
        let mut messages = Vec::new();
        for first in (1..=head.0).step_by(1_000) {
            let page = OffsetRange::new(Offset(first), Offset(head.0.min(first + 999)));
            messages.extend(self.store.fetch(topic.topic_id, page).await?);
        }
        Ok(messages)
    }

    /// The dead letters of every source: park, list, show, redrive, delete; and with [`DeadLetters::of`] those of a group.
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters::new(&self.store)
    }

    /// The dead letters of all groups and topics.
    pub fn all_dead_letters(&self) -> AllDeadLetters {
        AllDeadLetters::new(Arc::clone(&self.store))
    }

    /// The outbox: entries for external brokers, each with a status.
    pub fn outbox(&self) -> Outbox {
        Outbox::new(&self.store)
    }

    /// The inbox: a handler processes a message once, for messages that come from elsewhere.
    pub fn inbox(&self) -> Inbox {
        Inbox::new(&self.store)
    }

    /// The positions of bridges: how far each has read what another broker has.
    pub fn bridge_positions(&self) -> BridgePositions {
        BridgePositions::new(&self.store)
    }

    /// The registered relays: what the crate `headwater-relay` relays where.
    pub fn relays(&self) -> Relays {
        Relays::new(&self.store)
    }

    /// The API tokens of servers of this store.
    pub fn tokens(&self) -> Tokens {
        Tokens::new(&self.store)
    }

    /// The backfills of all topics, newest first.
    pub async fn backfills(&self) -> Result<Vec<Backfill>> {
        self.store.backfills().await
    }

    /// Ends a lease by hand, whichever process holds it: its messages are handed out again at once, and no attempt is
    /// counted. Tokens are in [`Groups::outstanding`]. `LeaseLost` if no lease has that token.
    pub async fn release_lease(&self, token: LeaseToken) -> Result<()> {
        self.store.release_lease(token).await
    }

    /// The cron jobs that were ever started on this store, by name: what each does and its last tick. `CronStatus` knows
    /// the next tick with the feature `cron`.
    pub async fn cron_jobs(&self) -> Result<Vec<CronStatus>> {
        self.store.cron_jobs().await
    }

    /// The changes that operators made, newest first, at most `limit`.
    pub async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>> {
        self.store.audit(limit).await
    }

    /// The same, of those before the entry of this number ([`AuditEntry::audit_id`]): the next page.
    pub async fn audit_before(&self, audit_id: i64, limit: u32) -> Result<Vec<AuditEntry>> {
        self.store.audit_before(audit_id, limit).await
    }

    /// Adds an audit entry for an act that makes none of its own, such as what a server refused. `detail` is a JSON object. The actor
    /// is that of the handle: see [`Headwater::acting_as`].
    pub async fn note_act(
        &self,
        act: &str,
        topic: Option<&str>,
        group: Option<&str>,
        detail: &serde_json::Value,
    ) -> Result<()> {
        self.store.note(act, topic, group, detail).await
    }

    /// Checks the invariants of everything stored. An empty result means that the store is sound; see
    /// [`Headwater::attention`] for what should be done although it is.
    pub async fn doctor(&self) -> Result<Vec<Finding>> {
        self.store.doctor().await
    }

    /// What an operator should act on although the store is sound: no process runs maintenance, a group that is not
    /// served, retention about to remove unread messages, settings that cannot work together, and so on. Each with
    /// what to do. Errors of the store are found by [`Headwater::doctor`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// let headwater = headwater::Headwater::in_memory().await?;
    /// headwater.topic("news").pub_sub().create().await?;
    /// headwater.producer("news").send(&1).await?;
    /// assert_eq!(headwater.attention().await?[0].check, "zero_subscriptions");
    /// # headwater.close().await }
    /// ```
    pub async fn attention(&self) -> Result<Vec<Finding>> {
        let mut findings = Figures::read(&*self.store).await?.attention();
        findings.extend(self.processes().attention().await?);
        #[cfg(feature = "postgres")]
        if let Some(postgres) = self.store.as_postgres() {
            return Ok([findings, postgres.attention().await?].concat());
        }
        Ok(findings)
    }

    /// Settings of the database server that weaken durability: less survives a crash than is promised. They are not
    /// errors of the store, and so not among the findings of [`Headwater::doctor`]. None on SQLite.
    pub async fn durability(&self) -> Result<Vec<Finding>> {
        #[cfg(feature = "postgres")]
        if let Some(postgres) = self.store.as_postgres() {
            return postgres.durability().await;
        }
        Ok(Vec::new())
    }
}
