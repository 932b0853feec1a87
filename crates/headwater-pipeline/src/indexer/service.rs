//! The run loop of batch indexers: discover the run, open its bindings, wait for metadata, prepare the schema, index, close.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::batch::BatchHandler;
use super::buffer::Buffer;
use super::idempotency::Idempotency;
use super::metadata::wait_for_metadata;
use super::options::IndexerOptions;
use crate::backoff::wait_out;
use crate::contracts::{BatchInfo, RunInfo};
use crate::error::{Error, ErrorCode, Result};
use crate::follow::{Follower, ServeRun};
use crate::health::Health;
use crate::resource::{BindIndexer, Handler, IndexerBindings, Reading, RunDirectory};
use crate::service::{Service, Stop};

/// The longest final flush; after it calls are ended, and their batches are redelivered.
const FINAL_FLUSH_MAX: Duration = Duration::from_secs(300);
/// How long a shutdown waits after the final flush for acks to be stored.
const ACKS_MAX: Duration = Duration::from_secs(5);

/// A service that indexes the batches of runs with an [`Indexer`](super::Indexer).
///
/// Any number of instances share the batches of a group, in one process or several.
pub struct BatchIndexer {
    name: String,
    follower: Follower,
    bind: Arc<dyn BindIndexer>,
    options: IndexerOptions,
    health: Arc<Health>,
}

impl BatchIndexer {
    /// An indexer that is not running yet. Refuses a blank name and options that cannot work.
    pub fn new(
        name: &str,
        directory: Arc<dyn RunDirectory>,
        bind: Arc<dyn BindIndexer>,
        options: IndexerOptions,
    ) -> Result<Self> {
        options.validate().map_err(|error| Error::invalid(format!("service {name}: {error}")))?;
        let health = Arc::new(Health::of_service(name));
        let follower = Follower::new(name, directory, options.run_id.clone(), Arc::clone(&health))?;
        Ok(BatchIndexer { name: name.to_owned(), follower, bind, options, health })
    }

    async fn index(
        &self,
        run: &RunInfo,
        bindings: &IndexerBindings,
        discovered: Instant,
        stop: &mut Stop,
    ) -> Result<()> {
        let run_id = run.run_id.as_str();
        let idempotency = self.idempotency(bindings)?;
        if !self.prepare(run_id, bindings, discovered, stop).await? {
            return Ok(());
        }
        if let Some(idempotency) = &idempotency {
            idempotency.prepare().await;
        }
        let limits = self.options.limits(bindings.indexer.components().buffering);
        let handler = Arc::new(BatchHandler::new(
            run_id,
            Arc::clone(&bindings.storage),
            Buffer::new(run_id, limits, Arc::clone(&self.health)),
            idempotency,
            self.options.batch_attempts,
            Arc::clone(&self.health),
        ));
        let start = || {
            let handler: Arc<dyn Handler<BatchInfo>> = handler.clone();
            bindings.batches.start(limits.files_max, handler)
        };
        match wait_out("start of reading batches", &self.health, stop, start).await? {
            Some(reading) => Box::pin(self.read(run_id, bindings, &handler, reading, stop)).await,
            None => Ok(()),
        }
    }

    /// Waits for metadata and prepares the schema; false if a stop is requested first.
    async fn prepare(
        &self,
        run_id: &str,
        bindings: &IndexerBindings,
        discovered: Instant,
        stop: &mut Stop,
    ) -> Result<bool> {
        let indexer = &bindings.indexer;
        let metadata = if indexer.components().metadata {
            let (index, patience) = (&*bindings.metadata, self.options.patience());
            let found = wait_for_metadata(index, run_id, discovered, patience, &self.health, stop).await?;
            let Some(metadata) = found else { return Ok(false) };
            Some(metadata)
        } else {
            None
        };
        let prepare = || indexer.prepare_schema(metadata.as_ref());
        let prepared =
            wait_out("schema preparation", &self.health, stop, prepare).await.map_err(|error| {
                Error::permanent(
                    ErrorCode::SchemaSetupFailed,
                    format!("schema of run {run_id} not prepared: {error}"),
                )
            })?;
        if prepared.is_some() {
            tracing::info!(service = self.name, run = run_id, "schema ready");
        }
        Ok(prepared.is_some())
    }

    /// Indexes until the run is finished or a stop is requested, then flushes and acks what is in hand.
    async fn read(
        &self,
        run_id: &str,
        bindings: &IndexerBindings,
        handler: &BatchHandler,
        reading: Box<dyn Reading>,
        stop: &mut Stop,
    ) -> Result<()> {
        let (buffer, idempotency) = (&handler.buffer, handler.idempotency.as_ref());
        // The same future until the end: a flush that has begun is not dropped by a stop.
        let mut flusher = std::pin::pin!(buffer.run(&*bindings.indexer));
        tokio::select! {
            _ = &mut flusher => unreachable!("the buffer is not closed yet"),
            () = stop.requested() => {}
            () = self.follower.finished(run_id, bindings.upstream.as_deref(), &*reading) => {}
            () = mark_acked(idempotency, &*reading) => {}
        }
        // Calls end once their ticks are flushed or given back; what they return is stored then.
        let (flushed, stopped) = stop_after(flusher, reading.stop(FINAL_FLUSH_MAX), || buffer.close()).await;
        match stopped {
            Ok(()) => {
                if let Some(idempotency) = idempotency {
                    idempotency.finish().await;
                }
            }
            Err(error) => {
                self.health.record_error(&error, format_args!("stop of reading run {run_id}"));
                tracing::warn!(service = self.name, run = run_id, %error, "last acks not stored, their batches are redelivered");
            }
        }
        self.health.set_buffer(0, 0);
        flushed.map_err(|error| {
            let message = format!("final flush of run {run_id} failed, its batches are redelivered: {error}");
            Error::permanent(error.code(), message)
        })
    }

    fn idempotency(&self, bindings: &IndexerBindings) -> Result<Option<Idempotency>> {
        if !self.options.enable_idempotency {
            return Ok(None);
        }
        let Some(tracker) = &bindings.tracker else {
            let message =
                format!("service {}: enable_idempotency needs a binding db-idempotency:NAME", self.name);
            return Err(Error::invalid(message));
        };
        Idempotency::new(Arc::clone(tracker), &bindings.group).map(Some)
    }
}

/// Marks batches as they are acked; does not return.
async fn mark_acked(idempotency: Option<&Idempotency>, reading: &dyn Reading) {
    match idempotency {
        Some(idempotency) => idempotency.run(reading).await,
        None => std::future::pending().await,
    }
}

/// The end of reading and the final flush; acks have [`ACKS_MAX`] after it.
async fn stop_after(
    flusher: impl Future<Output = Result<()>>,
    stopping: impl Future<Output = Result<()>>,
    close: impl FnOnce(),
) -> (Result<()>, Result<()>) {
    let (mut flusher, mut stopping) = (std::pin::pin!(flusher), std::pin::pin!(stopping));
    // Reading is stopped first: what calls give back when the buffer closes is not claimed here again.
    let begun = futures_util::poll!(&mut stopping);
    close();
    if let Poll::Ready(stopped) = begun {
        return (flusher.await, stopped);
    }
    tokio::select! {
        flushed = &mut flusher => {
            let late = |_| Err(Error::transient(ErrorCode::AckFailed, format!("not within {ACKS_MAX:?}")));
            (flushed, tokio::time::timeout(ACKS_MAX, stopping).await.unwrap_or_else(late))
        }
        stopped = &mut stopping => (flusher.await, stopped),
    }
}

#[async_trait]
impl ServeRun for BatchIndexer {
    async fn serve_run(&self, run: &RunInfo, stop: &mut Stop) -> Result<()> {
        let discovered = Instant::now();
        let open = || self.bind.bind(run);
        let Some(bindings) = wait_out("opening of bindings", &self.health, stop, open).await? else {
            return Ok(());
        };
        let indexed = self.index(run, &bindings, discovered, stop).await;
        bindings.closer.close().await;
        indexed
    }
}

#[async_trait]
impl Service for BatchIndexer {
    async fn run(&self, stop: Stop) -> Result<()> {
        self.follower.serve_runs(self, stop).await
    }

    fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }
}
