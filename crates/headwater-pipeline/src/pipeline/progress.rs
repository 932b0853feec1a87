//! How far a pipeline is: for a display while it runs, and for the moment when everything is done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{RunningPipeline, Shared};
use crate::bindings::QUEUE_GROUP;
use crate::config::{ServiceOptions, ServiceType};
use crate::contracts::RunInfo;
use crate::error::{Error, ErrorCode, Result};
use crate::index::{Index, IndexOptions};
use crate::manager::ServiceState;
use crate::runs::RunStore;

/// How often the rest of a run is measured.
const POLL: Duration = Duration::from_millis(100);

/// Ticks in the index are counted again after this time, and after so many times what the last count took: counting reads all of the run.
const COUNT_EVERY: Duration = Duration::from_secs(5);
const COUNT_SHARE: u32 = 50;

/// How far a pipeline is. Counts are of this process, since it started; those of the run are named so.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// The run that the source of this process makes.
    pub run_id: Option<String>,
    /// The ticks that the source is to publish of its run, if they are limited.
    pub ticks_total: Option<u64>,
    /// Ticks of the run that the source has published, also in earlier processes.
    pub run_ticks_published: u64,
    /// Ticks of the run whose cells are in the index, whichever process wrote them; `None` where the index is not known or not read.
    pub run_ticks_indexed: Option<u64>,
    /// Ticks that the source has published.
    pub ticks_published: u64,
    /// Ticks in files.
    pub ticks_persisted: u64,
    /// Files.
    pub files: u64,
    /// Bytes of files.
    pub file_bytes: u64,
    /// Ticks whose cells are indexed.
    pub ticks_indexed: u64,
    /// Cells that are indexed.
    pub cells_indexed: u64,
    /// Ticks whose organisms are indexed.
    pub organism_ticks_indexed: u64,
    /// Messages that are not done, per reader of this process. Known while the run is open.
    pub lags: Vec<Lag>,
}

/// What a reader has left to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lag {
    /// The topic or queue.
    pub topic: String,
    /// The group.
    pub group: String,
    /// Messages that are not done.
    pub messages: u64,
}

impl RunningPipeline {
    /// How far it is.
    pub async fn progress(&self) -> Progress {
        let mut progress = Progress { ticks_total: self.ticks_total(), ..Progress::default() };
        for status in self.manager.list() {
            let counts = status.health.counts;
            match status.service_type.as_str() {
                name if name == ServiceType::Tidepool.as_str() => {
                    progress.ticks_published += counts.ticks_published;
                    progress.run_ticks_published += counts.ticks_published + counts.ticks_resumed;
                }
                name if name == ServiceType::Persistence.as_str() => {
                    progress.ticks_persisted += counts.ticks_persisted;
                    progress.files += counts.batches_written;
                    progress.file_bytes += counts.bytes_written;
                }
                name if name == ServiceType::EnvironmentIndexer.as_str() => {
                    progress.ticks_indexed += counts.ticks_flushed;
                    progress.cells_indexed += counts.cells_written;
                }
                name if name == ServiceType::OrganismIndexer.as_str() => {
                    progress.organism_ticks_indexed += counts.ticks_flushed;
                }
                _ => {}
            }
        }
        if let Some(run) = self.source.as_ref().and_then(|(_, run)| run.borrow().clone()) {
            if let Some(store) = self.shared.runs.stores().peek(&run.run_id) {
                progress.lags = self.lags(&store).await.unwrap_or_default();
            }
            progress.run_ticks_indexed =
                self.counting.ticks(&self.shared, &run.run_id, || self.ticks_indexed()).await;
            progress.run_id = Some(run.run_id);
        }
        progress
    }

    /// What indexers of this process have written so far.
    fn ticks_indexed(&self) -> u64 {
        let indexers = self.manager.list().into_iter();
        let indexers =
            indexers.filter(|status| status.service_type == ServiceType::EnvironmentIndexer.as_str());
        indexers.map(|status| status.health.counts.ticks_flushed).sum()
    }

    /// The source's ticks are those of the world, of which every n-th is published.
    fn ticks_total(&self) -> Option<u64> {
        let mut sources = self.shared.config.services.iter().filter_map(|service| match &service.options {
            ServiceOptions::Tidepool(options) => {
                Some(options.ticks.map(|ticks| ticks.div_ceil(options.tidepool.sampling_interval.max(1))))
            }
            _ => None,
        });
        sources.next().flatten()
    }

    /// The readers of this process, in the order in which messages move: queues, then topics.
    fn readers(&self) -> Vec<(String, String)> {
        let mut readers = Vec::new();
        for from_queue in [true, false] {
            for service in &self.shared.config.services {
                for binding in service.bindings.values() {
                    let group = match (&binding.group, binding.usage.as_str()) {
                        (None, "queue-in") if from_queue => QUEUE_GROUP,
                        (Some(group), _) if !from_queue => group,
                        _ => continue,
                    };
                    let reader = (binding.resource.clone(), group.to_owned());
                    if !readers.contains(&reader) {
                        readers.push(reader);
                    }
                }
            }
        }
        readers
    }

    async fn lags(&self, store: &RunStore) -> Result<Vec<Lag>> {
        let failed = |error: headwater::Error| Error::from_store(ErrorCode::ReadFailed, &error);
        store.headwater.topics().advance_heads().await.map_err(failed)?;
        let mut lags = Vec::new();
        for (topic, group) in self.readers() {
            let status = store.headwater.groups(&topic).get(&group).await.map_err(failed)?;
            lags.push(Lag { topic, group, messages: status.status.lag });
        }
        Ok(lags)
    }

    /// Waits until the source has made all its ticks and the readers of this process have done them; without a source, until all services
    /// have ended by themselves. An error as soon as a service fails.
    pub async fn finished(&self) -> Result<()> {
        let Some((source, run)) = &self.source else { return self.all_ended().await };
        tokio::select! {
            ended = self.manager.until_ended(source) => drop(ended?),
            failed = self.any_failed() => return Err(failed),
        }
        let run = run.borrow().clone();
        let (Some(run), None) = (run, self.failure()) else { return self.failure().map_or(Ok(()), Err) };
        tokio::select! {
            done = self.all_done(&run) => done?,
            failed = self.any_failed() => return Err(failed),
        }
        self.counting.renew().await;
        Ok(())
    }

    /// Waits until each reader of this process has done all of the run. Read in the order in which messages move: what is made of a message is
    /// announced before it is done, so nothing is missed between two readings.
    async fn all_done(&self, run: &RunInfo) -> Result<()> {
        // Open until then, whatever the services do. In tasks of their own: the future of a caller who does not poll it for a while would
        // hold its place in line for the stores, and with it all services that come after.
        let (stores, of) = (Arc::clone(self.shared.runs.stores()), run.clone());
        let used = in_task(async move { stores.acquire(&of).await }).await?;
        let store = Arc::clone(&used.0);
        loop {
            match self.lags(&store).await {
                Ok(lags) if lags.iter().all(|lag| lag.messages == 0) => break,
                // A reader that has not begun has no group yet.
                Ok(_) | Err(_) => tokio::time::sleep(POLL).await,
            }
        }
        drop(store);
        let stores = Arc::clone(self.shared.runs.stores());
        in_task(async move { stores.release(used).await }).await
    }

    async fn all_ended(&self) -> Result<()> {
        for status in self.manager.list() {
            self.manager.until_ended(&status.service).await?;
        }
        self.failure().map_or(Ok(()), Err)
    }

    async fn any_failed(&self) -> Error {
        loop {
            if let Some(error) = self.failure() {
                return error;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn failure(&self) -> Option<Error> {
        let failed = self.manager.list().into_iter().find(|status| status.state == ServiceState::Error)?;
        let (service, error) = (failed.service, failed.error.unwrap_or_default());
        Some(Error::permanent(ErrorCode::ReadFailed, format!("service {service} failed: {error}")))
    }
}

/// The result of a call that continues although its caller does not poll it, or has given up on it: what it opened is closed by the stop.
async fn in_task<T: Send + 'static>(call: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    tokio::spawn(call).await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(error) => {
            Err(Error::transient(ErrorCode::ReadFailed, format!("runtime is shutting down: {error}")))
        }
    })
}

/// The ticks of a run in the index: counted now and then, and continued by what this process has written since.
#[derive(Default)]
pub(super) struct Counting(tokio::sync::Mutex<Option<Counted>>);

struct Counted {
    index: Index,
    /// The last count, and what this process had written after it.
    ticks: Option<u64>,
    own: u64,
    next_at: Instant,
}

impl Counting {
    async fn ticks(&self, shared: &Shared, run_id: &str, own: impl Fn() -> u64) -> Option<u64> {
        let mut counted = self.0.lock().await;
        if counted.as_ref().is_none_or(|counted| counted.index.run_id() != run_id) {
            let options = IndexOptions {
                strategies: shared.strategies.clone(),
                connections_max: 1,
                connections_idle_min: 0,
                ..IndexOptions::default()
            };
            let index = Index::open(&shared.config.index().ok()?.url, run_id, &options).ok()?;
            if let Some(former) = counted.take() {
                former.index.close().await;
            }
            *counted = Some(Counted { index, ticks: None, own: 0, next_at: Instant::now() });
        }
        let counted = counted.as_mut()?;
        let begun = Instant::now();
        if begun >= counted.next_at {
            // An index that has no table yet, or is away, is asked again later; what is known stays.
            if let Ok(ticks) = counted.index.tick_count().await {
                (counted.ticks, counted.own) = (Some(ticks), own());
            }
            counted.next_at = Instant::now() + COUNT_EVERY.max(begun.elapsed() * COUNT_SHARE);
        }
        // At most what is there: of what was written during the count some may be in it.
        counted.ticks.map(|ticks| ticks + own().saturating_sub(counted.own))
    }

    /// The next reading counts again.
    pub(super) async fn renew(&self) {
        if let Some(counted) = self.0.lock().await.as_mut() {
            counted.next_at = Instant::now();
        }
    }

    pub(super) async fn close(&self) {
        if let Some(counted) = self.0.lock().await.take() {
            counted.index.close().await;
        }
    }
}
