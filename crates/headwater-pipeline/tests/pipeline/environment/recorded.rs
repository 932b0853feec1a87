//! Parts around an indexer that record how they are used, and fail as a case demands.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use headwater_pipeline::contracts::{BatchInfo, MetadataInfo, SimulationMetadata, TickData, TickDataBatch};
use headwater_pipeline::indexer::{Components, EnvironmentIndexer, Indexer};
use headwater_pipeline::resource::{
    BatchStorageRead, EnvironmentWrite, IdempotencyTracker, MetadataRead, TopicWriter,
};
use headwater_pipeline::{Error, ErrorCode, Result};

/// What happens before a flush.
type Before = Arc<dyn Fn(usize) -> futures_util::future::BoxFuture<'static, Result<()>> + Send + Sync>;

/// Writes cells, records the sizes of flushes, and has the components of a case.
#[derive(Clone)]
pub(crate) struct Recorded {
    components: Components,
    sizes: Arc<Mutex<Vec<usize>>>,
    before: Option<Before>,
}

impl Recorded {
    pub(crate) fn new(components: Components) -> Self {
        Recorded { components, sizes: Arc::default(), before: None }
    }

    /// Calls this before each flush, with its number from 0.
    pub(crate) fn before<F>(mut self, call: impl Fn(usize) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        self.before = Some(Arc::new(move |nth| Box::pin(call(nth))));
        self
    }

    /// The ticks of each flush.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.sizes.lock().expect("no panic").clone()
    }

    pub(crate) fn make(&self) -> impl Fn(Arc<dyn EnvironmentWrite>) -> Arc<dyn Indexer> + Send + Sync {
        let of = self.clone();
        move |index| Arc::new(Recording { index: EnvironmentIndexer::new(index), of: of.clone() })
    }
}

struct Recording {
    index: EnvironmentIndexer,
    of: Recorded,
}

#[async_trait]
impl Indexer for Recording {
    fn components(&self) -> Components {
        self.of.components
    }

    async fn prepare_schema(&self, metadata: Option<&SimulationMetadata>) -> Result<()> {
        assert_eq!(metadata.is_some(), self.of.components.metadata);
        // One that does without metadata still writes to the table of this world.
        let of_test = headwater_pipeline::testing::metadata("run");
        self.index.prepare_schema(metadata.or(Some(&of_test))).await
    }

    async fn flush_ticks(&self, ticks: &[TickData]) -> Result<()> {
        let nth = self.of.sizes().len();
        self.of.sizes.lock().expect("no panic").push(ticks.len());
        if let Some(before) = &self.of.before {
            before(nth).await?;
        }
        self.index.flush_ticks(ticks).await
    }
}

/// Counts what is read.
pub(crate) struct Counted<T: ?Sized> {
    inner: Arc<T>,
    reads: Arc<AtomicU64>,
}

impl<T: ?Sized> Counted<T> {
    pub(crate) fn new(inner: &Arc<T>) -> (Self, Arc<AtomicU64>) {
        let reads = Arc::new(AtomicU64::new(0));
        (Counted { inner: Arc::clone(inner), reads: Arc::clone(&reads) }, reads)
    }
}

#[async_trait]
impl BatchStorageRead for Counted<dyn BatchStorageRead> {
    async fn read_batch(&self, info: &BatchInfo) -> Result<TickDataBatch> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read_batch(info).await
    }

    async fn read_metadata(&self, info: &MetadataInfo) -> Result<SimulationMetadata> {
        self.inner.read_metadata(info).await
    }
}

#[async_trait]
impl MetadataRead for Counted<dyn MetadataRead> {
    async fn metadata(&self, run_id: &str) -> Result<Option<SimulationMetadata>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.metadata(run_id).await
    }
}

/// A table that is away.
pub(crate) struct Down(pub(crate) Arc<AtomicU64>);

#[async_trait]
impl IdempotencyTracker for Down {
    async fn create_schema(&self) -> Result<()> {
        Ok(())
    }

    async fn is_done(&self, _: &str, _: &str) -> Result<bool> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(Error::transient(ErrorCode::ReadFailed, "table missing"))
    }

    async fn mark_done(&self, _: &str, _: &str) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(Error::transient(ErrorCode::WriteFailed, "table missing"))
    }
}

/// Announces after a check, and fails so many times first.
pub(crate) struct Announcing<C> {
    pub(crate) inner: Arc<dyn TopicWriter<BatchInfo>>,
    pub(crate) failures: Arc<AtomicU64>,
    pub(crate) check: C,
}

#[async_trait]
impl<C: Fn(&BatchInfo) + Send + Sync> TopicWriter<BatchInfo> for Announcing<C> {
    async fn send(&self, message: &BatchInfo, dedup_key: &str) -> Result<()> {
        assert_eq!(dedup_key, message.storage_key);
        (self.check)(message);
        let fails =
            self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match fails {
            Ok(_) => Err(Error::transient(ErrorCode::WriteFailed, "topic unreachable")),
            Err(_) => self.inner.send(message, dedup_key).await,
        }
    }
}
