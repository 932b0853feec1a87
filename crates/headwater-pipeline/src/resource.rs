//! What services depend on: small traits, so that tests use fakes, and another broker or database can be bound without touching a service.
//!
//! An implementation states with [`Error::is_transient`](crate::Error::is_transient) whether waiting helps; services wait such errors out.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::contracts::{BatchInfo, MetadataInfo, RunInfo, SimulationMetadata, TickData, TickDataBatch};
use crate::error::Result;
use crate::indexer::Indexer;
use crate::world::World;

/// Publishes messages of one type.
#[async_trait]
pub trait TopicWriter<T>: Send + Sync {
    /// Returns once the message is durable. Within the topic's window a second message with the same key changes nothing.
    async fn send(&self, message: &T, dedup_key: &str) -> Result<()>;
}

/// Publishes ticks into a queue that persistence empties.
#[async_trait]
pub trait TickQueueWriter: Send + Sync {
    /// Returns once all of them are durable; after an error, or if the call is dropped, any part of them may be. Each has the dedup key
    /// `{run}/{tick}`, so that sending it again changes nothing.
    ///
    /// Waits while more ticks or bytes are pending than the queue allows: this is the back-pressure that holds the source.
    async fn send_ticks(&self, ticks: &[TickData]) -> Result<()>;
}

/// Delivers messages of one type to a handler until it is stopped.
#[async_trait]
pub trait TopicReader<T>: Send + Sync {
    /// Starts the group if it is new, then calls the handler for up to `concurrency` messages at a time. Leases are extended while
    /// a call runs, for as long as it takes.
    async fn start(&self, concurrency: usize, handler: Arc<dyn Handler<T>>) -> Result<Box<dyn Reading>>;
}

/// What a service does with a message.
#[async_trait]
pub trait Handler<T>: Send + Sync {
    /// Returns once the message is dealt with; a dropped call leaves it unsettled.
    async fn handle(&self, message: T, delivery: Delivery) -> Verdict;
}

/// The circumstances of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The position in the topic.
    pub offset: i64,
    /// From 1. Above 1 after a crash, a lost lease or a failure.
    pub attempt: u32,
}

/// What becomes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Acked.
    Done,
    /// Delivered again after the topic's back-off; costs an attempt.
    Retry(String),
    /// Given back at once; costs no attempt.
    GiveBack,
    /// Becomes a dead letter.
    Bury(String),
}

/// A topic that is being read.
#[async_trait]
pub trait Reading: Send + Sync {
    /// Messages that the group has not settled.
    async fn lag(&self) -> Result<u64>;

    /// The offset up to which the group has settled every message: what a service returned on them is stored.
    async fn settled_up_to(&self) -> Result<i64>;

    /// Claims nothing more, waits for running calls up to `grace`, and returns once what they returned is stored.
    async fn stop(self: Box<Self>, grace: Duration) -> Result<()>;
}

/// Messages in an earlier stage of a run: what they become is still to be announced.
#[async_trait]
pub trait Backlog: Send + Sync {
    /// How many are not settled.
    async fn lag(&self) -> Result<u64>;
}

/// Takes ticks of one run from a durable queue, for a service with its own loop. Leases are extended for as long as the ticks are held.
#[async_trait]
pub trait TickQueueReader: Send + Sync {
    /// Gathers ticks until there are `max`, or `at_most` has passed since the first one; `None` if none came in that time. Returns
    /// sooner with ticks that were delivered before: after a crash they come back alone, and waiting for others would only cost time.
    ///
    /// May be dropped at any moment: what was gathered is in the result of the next call.
    async fn next(&mut self, max: usize, at_most: Duration) -> Result<Option<TickClaims>>;

    /// Ticks in the queue that are not settled.
    async fn lag(&self) -> Result<u64>;

    /// Claims nothing more, gives back what was gathered and not returned, and returns once all acks are stored.
    async fn close(self: Box<Self>) -> Result<()>;
}

/// Ticks in hand. Dropped without an ack they are given back to the queue, at no attempt.
pub struct TickClaims {
    /// The ticks as they came: not sorted, possibly some of them twice.
    pub ticks: Vec<TickData>,
    /// The attempt that each of them is in, from 1. Above 1 after a crash, a lost lease or a failure.
    pub attempts: Vec<u32>,
    /// Settles exactly these ticks.
    pub claim: Box<dyn Claim>,
}

impl TickClaims {
    /// Whether one of them was delivered before.
    pub fn is_redelivered(&self) -> bool {
        self.attempts.iter().any(|attempt| *attempt > 1)
    }
}

/// The right to settle messages.
#[async_trait]
pub trait Claim: Send {
    /// Acks all of them but those listed by their place, each with what becomes of it. To be called once everything made of the others
    /// is durable and announced.
    async fn settle(self: Box<Self>, others: Vec<(usize, Verdict)>) -> Result<()>;

    /// Acks all of them.
    async fn ack(self: Box<Self>) -> Result<()> {
        self.settle(Vec::new()).await
    }
}

/// Reads batch files and metadata.
#[async_trait]
pub trait BatchStorageRead: Send + Sync {
    /// The file, after its length, checksum, format and run were compared with what was announced.
    async fn read_batch(&self, info: &BatchInfo) -> Result<TickDataBatch>;

    /// The metadata, checked in the same way.
    async fn read_metadata(&self, info: &MetadataInfo) -> Result<SimulationMetadata>;
}

/// Writes batch files and metadata.
#[async_trait]
pub trait BatchStorageWrite: Send + Sync {
    /// Writes ticks of one run as a file, durable when this returns. Ticks are sorted, and of equal ones the first is kept.
    async fn write_batch(&self, ticks: Vec<TickData>) -> Result<BatchInfo>;

    /// Writes a run's metadata, durable when this returns.
    async fn write_metadata(&self, metadata: &SimulationMetadata) -> Result<MetadataInfo>;
}

/// Reads the metadata of the run in the index.
#[async_trait]
pub trait MetadataRead: Send + Sync {
    /// `None` until it is indexed.
    async fn metadata(&self, run_id: &str) -> Result<Option<SimulationMetadata>>;
}

/// Writes the metadata of the run into the index.
#[async_trait]
pub trait MetadataWrite: Send + Sync {
    /// Creates what is missing; any number of processes may call it at once.
    async fn create_schema(&self) -> Result<()>;

    /// Stores it once. The same content again changes nothing; other content is a permanent error.
    async fn insert_metadata(&self, metadata: &SimulationMetadata) -> Result<()>;
}

/// Writes cells of ticks into the index.
#[async_trait]
pub trait EnvironmentWrite: Send + Sync {
    /// Creates what is missing; any number of processes may call it at once.
    async fn create_schema(&self, world: &World) -> Result<()>;

    /// One transaction, durable when this returns; nothing is left of it after an error. Repeats change nothing.
    async fn write_ticks(&self, ticks: &[TickData]) -> Result<()>;
}

/// Writes organisms of ticks into the index.
#[async_trait]
pub trait OrganismWrite: Send + Sync {
    /// Creates what is missing; any number of processes may call it at once.
    async fn create_schema(&self) -> Result<()>;

    /// One transaction, durable when this returns; nothing is left of it after an error. Repeats change nothing.
    async fn write_organisms(&self, ticks: &[TickData]) -> Result<()>;
}

/// Knows batches that are done, to save reading them again. Its errors cost time only.
#[async_trait]
pub trait IdempotencyTracker: Send + Sync {
    /// Creates what is missing; any number of processes may call it at once.
    async fn create_schema(&self) -> Result<()>;

    /// Whether the batch was marked.
    async fn is_done(&self, group: &str, batch_id: &str) -> Result<bool>;

    /// Called after commit and ack, never before.
    async fn mark_done(&self, group: &str, batch_id: &str) -> Result<()>;
}

/// Knows the runs.
#[async_trait]
pub trait RunDirectory: Send + Sync {
    /// The run with this id, in its newest state.
    async fn run(&self, run_id: &str) -> Result<Option<RunInfo>>;

    /// The newest run that started after `after`, or the newest of all.
    async fn newest(&self, after: Option<&str>) -> Result<Option<RunInfo>>;

    /// Waits until a run was registered or changed its state, at most so long.
    async fn changed(&self, at_most: Duration);
}

/// What an indexer needs of one run. A binding serves this run only; an indexer that follows runs opens new ones.
pub struct IndexerBindings {
    /// Prepares its schema and flushes ticks of this run.
    pub indexer: Arc<dyn Indexer>,
    /// Batches to index.
    pub batches: Arc<dyn TopicReader<BatchInfo>>,
    /// The group that reads them, for the idempotency table.
    pub group: String,
    /// Where batch files are.
    pub storage: Arc<dyn BatchStorageRead>,
    /// The run's metadata.
    pub metadata: Arc<dyn MetadataRead>,
    /// Where batches that are done are known, if configured.
    pub tracker: Option<Arc<dyn IdempotencyTracker>>,
    /// The tick queue: a run that has ended is finished only once its ticks are announced.
    pub upstream: Option<Arc<dyn Backlog>>,
    /// Closes all of it, newest first.
    pub closer: Box<dyn Closer>,
}

/// Opens the bindings of a run.
#[async_trait]
pub trait BindIndexer: Send + Sync {
    /// Refused for a blank run id.
    async fn bind(&self, run: &RunInfo) -> Result<IndexerBindings>;
}

/// What the metadata indexer needs of one run.
pub struct MetadataIndexerBindings {
    /// Metadata to index.
    pub announcements: Arc<dyn TopicReader<MetadataInfo>>,
    /// Where the metadata file is.
    pub storage: Arc<dyn BatchStorageRead>,
    /// Where it is written.
    pub index: Arc<dyn MetadataWrite>,
    /// The metadata queue.
    pub upstream: Option<Arc<dyn Backlog>>,
    /// Closes all of it, newest first.
    pub closer: Box<dyn Closer>,
}

/// What the persistence of ticks needs of one run.
pub struct PersistenceBindings {
    /// Ticks to write.
    pub ticks: Box<dyn TickQueueReader>,
    /// Where files are written.
    pub storage: Arc<dyn BatchStorageWrite>,
    /// Where they are announced.
    pub announcements: Arc<dyn TopicWriter<BatchInfo>>,
    /// Closes all of it, newest first.
    pub closer: Box<dyn Closer>,
}

/// What the persistence of metadata needs of one run.
pub struct MetadataPersistenceBindings {
    /// Metadata to write.
    pub metadata: Arc<dyn TopicReader<SimulationMetadata>>,
    /// Where the file is written.
    pub storage: Arc<dyn BatchStorageWrite>,
    /// Where it is announced.
    pub announcements: Arc<dyn TopicWriter<MetadataInfo>>,
    /// Closes all of it, newest first.
    pub closer: Box<dyn Closer>,
}

/// Opens the bindings of a run for a service that is no batch indexer: `B` is one of the structs above.
#[async_trait]
pub trait Bind<B>: Send + Sync {
    /// Refused for a blank run id.
    async fn bind(&self, run: &RunInfo) -> Result<B>;
}

/// Ends bindings.
#[async_trait]
pub trait Closer: Send + Sync {
    /// A failing close is logged as WARN and stops no other.
    async fn close(self: Box<Self>);
}
