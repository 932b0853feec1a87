//! Persistence: takes ticks from a durable queue, writes them as batch files and announces the files.
//!
//! The order is: write the file (durable when the call returns), publish its announcement (durable too), ack the ticks. Why a crash
//! anywhere repeats a batch and never loses one: ticks leave the queue by the ack alone. Before the file is complete there is nothing of it.
//! Between file and announcement the file is there and no reader knows it; between announcement and ack the batch is announced and its ticks
//! come again, as the same batch or cut differently. Either way every tick is in an announced file before it leaves the queue. What
//! repeats is harmless: the same range has the same key and announcement (dedup key = storage key), an overlapping one upserts the same rows.
//!
//! A failed write gives the ticks back to the queue and is repeated from there after a pause: another instance may have storage that works. A
//! failed announcement is repeated until it succeeds or a stop is requested; then the ticks are given back too. A tick that storage
//! refuses for good becomes a dead letter (`write`).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::backoff::{Backoff, wait_out};
use crate::contracts::RunInfo;
use crate::error::{Error, ErrorCode, Result};
use crate::follow::{Follower, ServeRun};
use crate::health::{Counter, Health};
use crate::resource::{Bind, PersistenceBindings, RunDirectory, TickQueueReader, TopicWriter};
use crate::service::{Service, Stop};

mod metadata;
mod write;

pub use metadata::MetadataPersistence;
use write::Writer;

/// Files written at once: the next one is gathered and written while the first waits for the disk.
const WRITES_MAX: usize = 2;

/// The options of the persistence of ticks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PersistenceOptions {
    /// The only run to write; without it the newest one is followed.
    pub run_id: Option<String>,
    /// Ticks in a file at most.
    pub batch_size: usize,
    /// After how long a file is written, from its first tick.
    pub batch_timeout_ms: u64,
    /// How often a tick that storage refuses for good is tried before it becomes a dead letter.
    pub batch_attempts: u32,
}

impl Default for PersistenceOptions {
    fn default() -> Self {
        PersistenceOptions { run_id: None, batch_size: 1_000, batch_timeout_ms: 5_000, batch_attempts: 3 }
    }
}

impl PersistenceOptions {
    /// Refuses what cannot work, with the option's name.
    pub fn validate(&self) -> Result<()> {
        if self.run_id.as_deref().is_some_and(|run_id| run_id.trim().is_empty()) {
            return Err(Error::invalid("run_id is blank"));
        }
        for (name, value) in [
            ("batch_size", self.batch_size as u64),
            ("batch_timeout_ms", self.batch_timeout_ms),
            ("batch_attempts", u64::from(self.batch_attempts)),
        ] {
            if value == 0 {
                return Err(Error::invalid(format!("{name} is 0, expected at least 1")));
            }
        }
        Ok(())
    }
}

/// The service that writes ticks. Any number of instances share a queue.
pub struct Persistence {
    name: String,
    follower: Follower,
    bind: Arc<dyn Bind<PersistenceBindings>>,
    options: PersistenceOptions,
    health: Arc<Health>,
}

impl Persistence {
    /// A service that is not running yet. Refuses a blank name and options that cannot work.
    pub fn new(
        name: &str,
        directory: Arc<dyn RunDirectory>,
        bind: Arc<dyn Bind<PersistenceBindings>>,
        options: PersistenceOptions,
    ) -> Result<Self> {
        options.validate().map_err(|error| Error::invalid(format!("service {name}: {error}")))?;
        let health = Arc::new(Health::of_service(name));
        let follower = Follower::new(name, directory, options.run_id.clone(), Arc::clone(&health))?;
        Ok(Persistence { name: name.to_owned(), follower, bind, options, health })
    }

    /// Writes files until the run is finished or a stop is requested; then those that have begun.
    async fn write_files(
        &self,
        run_id: &str,
        ticks: &mut dyn TickQueueReader,
        writer: &Writer<'_>,
        stop: &mut Stop,
    ) -> Result<()> {
        let (size, timeout) = (self.options.batch_size, Duration::from_millis(self.options.batch_timeout_ms));
        let mut writing = FuturesUnordered::new();
        let (mut backoff, mut resume_at) = (Backoff::new(), None);
        let ended = loop {
            tokio::select! {
                biased;
                () = stop.requested() => break Ok(()),
                Some(is_written) = writing.next(), if !writing.is_empty() => match is_written {
                    true => backoff = Backoff::new(),
                    false => resume_at = Some(Instant::now() + backoff.pause()),
                },
                () = tokio::time::sleep_until(resume_at.unwrap_or_else(Instant::now)), if resume_at.is_some() => {
                    resume_at = None;
                }
                // What it has gathered when it is dropped here is in the result of the next call.
                next = ticks.next(size, timeout), if resume_at.is_none() && writing.len() < WRITES_MAX => match next {
                    Ok(Some(claims)) => writing.push(writer.write(claims, stop.clone())),
                    Ok(None) if writing.is_empty() && self.is_finished(run_id, ticks).await => break Ok(()),
                    Ok(None) => {}
                    Err(error) => {
                        self.health.record_error(&error, format_args!("ticks of run {run_id}"));
                        if !error.is_transient() {
                            break Err(error);
                        }
                        tracing::warn!(service = self.name, run = run_id, %error, "ticks not claimed");
                        resume_at = Some(Instant::now() + backoff.pause());
                    }
                },
            }
        };
        while writing.next().await.is_some() {}
        ended
    }

    /// Whether no tick of the run can come any more: a run is ended after its last tick is in the queue.
    async fn is_finished(&self, run_id: &str, ticks: &mut dyn TickQueueReader) -> bool {
        if !self.follower.has_ended(run_id).await {
            return false;
        }
        match ticks.lag().await {
            Ok(lag) => lag == 0,
            Err(error) => {
                self.health.record_error(&error, format_args!("lag of run {run_id}"));
                tracing::warn!(service = self.name, run = run_id, %error, "lag of the tick queue not read");
                false
            }
        }
    }
}

#[async_trait]
impl ServeRun for Persistence {
    async fn serve_run(&self, run: &RunInfo, stop: &mut Stop) -> Result<()> {
        let open = || self.bind.bind(run);
        let Some(bindings) = wait_out("opening of bindings", &self.health, stop, open).await? else {
            return Ok(());
        };
        let PersistenceBindings { mut ticks, storage, announcements, closer } = bindings;
        let attempts = self.options.batch_attempts;
        let writer = Writer::new(&self.name, &*storage, &*announcements, attempts, &self.health);
        let written = Box::pin(self.write_files(&run.run_id, &mut *ticks, &writer, stop)).await;
        if let Err(error) = ticks.close().await {
            self.health.record_error(&error, "tick queue");
            tracing::warn!(service = self.name, run = run.run_id, %error, "tick queue not closed");
        }
        closer.close().await;
        written
    }
}

#[async_trait]
impl Service for Persistence {
    async fn run(&self, stop: Stop) -> Result<()> {
        self.follower.serve_runs(self, stop).await
    }

    fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }
}

/// Publishes an announcement, again and again; false if a stop is requested first.
async fn announce<T>(
    topic: &dyn TopicWriter<T>,
    info: &T,
    storage_key: &str,
    health: &Health,
    stop: &mut Stop,
) -> bool {
    let mut backoff = Backoff::new();
    while let Err(error) = topic.send(info, storage_key).await {
        health.count(Counter::NotificationsFailed, 1);
        let error = Error::transient(ErrorCode::NotifyFailed, error);
        health.record_error(&error, format_args!("announcement of {storage_key}"));
        tracing::warn!(key = storage_key, %error, "file not announced, repeated after a pause");
        if !backoff.wait(stop).await {
            return false;
        }
    }
    true
}
