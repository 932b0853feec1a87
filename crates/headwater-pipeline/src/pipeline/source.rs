//! The source as a service of the pipeline: which run it makes, and what is registered of it.
//!
//! The id of its run is durable in a file before the run is registered, so that a source that is killed at any moment continues this run and
//! leaves none behind that never ends. Once the run has ended or failed, the next start makes a new one.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::watch;

use super::Shared;
use super::bind::{Binder, Opened};
use crate::backoff::wait_out;
use crate::config::ServiceConfig;
use crate::contracts::{RunInfo, SimulationMetadata};
use crate::error::{Error, ErrorCode, Result};
use crate::health::Health;
use crate::resource::{RunDirectory, TickQueueWriter, TopicWriter};
use crate::run_id::RunId;
use crate::service::{Service, Stop};
use crate::source::{SourceOptions, TidepoolSource};

/// Makes a run after the other, one per start.
pub(super) struct RunSource {
    shared: Arc<Shared>,
    name: String,
    configured: Option<String>,
    binder: Binder,
    options: SourceOptions,
    run: watch::Sender<Option<RunInfo>>,
    /// Of the run that is made now.
    health: Mutex<Arc<Health>>,
}

impl RunSource {
    pub(super) fn new(shared: &Arc<Shared>, config: &ServiceConfig, options: &SourceOptions) -> Self {
        RunSource {
            shared: Arc::clone(shared),
            name: config.name.clone(),
            configured: config.run_id.clone(),
            binder: Binder::new(shared, config),
            options: options.clone(),
            run: watch::Sender::new(None),
            health: Mutex::new(Arc::new(Health::of_service(&config.name))),
        }
    }

    /// The run that it makes, once it is registered.
    pub(super) fn run(&self) -> watch::Receiver<Option<RunInfo>> {
        self.run.subscribe()
    }

    /// The run to make: a new one, the configured one, or the one that an earlier start has not finished.
    async fn choose(&self) -> Result<RunInfo> {
        let directory = self.shared.runs.directory().await?;
        let file = RunFile::new(&self.options.checkpoint_directory, &self.name);
        let former = match &self.configured {
            Some(run_id) => Some(RunId::parse(run_id)?),
            None => file.read()?,
        };
        let registered = match &former {
            Some(run_id) => directory.run(run_id.as_str()).await?,
            None => None,
        };
        let run_id = match (former, registered) {
            (Some(_), Some(run)) if !has_ended(&run) => return Ok(run),
            (Some(run_id), Some(_)) if self.configured.is_some() => {
                return Err(Error::invalid(format_args!(
                    "run {run_id} has ended; leave run_id out to make a new one"
                )));
            }
            // Killed between the file and the registration, or configured for the first time.
            (Some(run_id), None) => run_id,
            _ => RunId::generate(),
        };
        file.write(&run_id)?;
        let run = RunInfo {
            run_id: run_id.to_string(),
            namespace: run_id.to_string(),
            started_at_ms: run_id.started_at().as_millisecond(),
            state: "STARTING".to_owned(),
            ..RunInfo::default()
        };
        self.shared.runs.register(&run).await?;
        Ok(run)
    }

    async fn make(&self, run: &RunInfo, stop: &mut Stop) -> Result<()> {
        let open = || {
            self.binder.with(run, async |opened: &mut Opened| {
                Ok((opened.topic_writer("metadata").await?, opened.tick_writer("ticks").await?))
            })
        };
        let health = self.health();
        let Some(((metadata, ticks), closer)) = wait_out("opening of bindings", &health, stop, open).await?
        else {
            return Ok(());
        };
        let made = self.produce(run, metadata, ticks, stop).await;
        closer.close().await;
        made
    }

    async fn produce(
        &self,
        run: &RunInfo,
        metadata: Arc<dyn TopicWriter<SimulationMetadata>>,
        ticks: Arc<dyn TickQueueWriter>,
        stop: &mut Stop,
    ) -> Result<()> {
        let source = TidepoolSource::new(&self.name, &run.run_id, self.options.clone(), metadata, ticks)?;
        *self.health.lock().expect("no panic while held") = source.health();
        self.register(run, "RUNNING", "", stop).await?;
        source.run(stop.clone()).await?;
        if source.is_complete() {
            // If a stop comes before it is registered, the next start finds everything published and registers it.
            self.register(run, "ENDED", "all ticks are made", stop).await?;
        }
        Ok(())
    }

    /// Registers a state of the run; waits out a store that is away.
    async fn register(&self, run: &RunInfo, state: &str, reason: &str, stop: &mut Stop) -> Result<()> {
        let has_ended = matches!(state, "ENDED" | "FAILED");
        let run = RunInfo {
            state: state.to_owned(),
            reason: reason.to_owned(),
            ended_at_ms: if has_ended { Timestamp::now().as_millisecond() } else { 0 },
            ..run.clone()
        };
        let health = self.health();
        let registered =
            wait_out("registration of the run", &health, stop, || self.shared.runs.register(&run)).await?;
        if registered.is_some() {
            self.run.send_replace(Some(run));
        }
        Ok(())
    }
}

fn has_ended(run: &RunInfo) -> bool {
    matches!(run.state.as_str(), "ENDED" | "FAILED")
}

#[async_trait]
impl Service for RunSource {
    async fn run(&self, mut stop: Stop) -> Result<()> {
        let health = self.health();
        let Some(run) = wait_out("choice of a run", &health, &mut stop, || self.choose()).await? else {
            return Ok(());
        };
        self.run.send_replace(Some(run.clone()));
        tracing::info!(service = self.name, run = run.run_id, "run started");
        let made = self.make(&run, &mut stop).await;
        if let Err(error) = &made {
            // Its readers finish what it has made.
            self.register(&run, "FAILED", &error.to_string(), &mut stop).await?;
        }
        made
    }

    fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health.lock().expect("no panic while held"))
    }
}

/// The file with the id of the run that a source makes.
struct RunFile(PathBuf);

impl RunFile {
    fn new(directory: &Path, service: &str) -> Self {
        RunFile(directory.join(format!("{service}.run")))
    }

    fn read(&self) -> Result<Option<RunId>> {
        match std::fs::read_to_string(&self.0) {
            Ok(text) => RunId::parse(text.trim()).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(ErrorCode::ReadFailed, &error)),
        }
    }

    /// Durable when this returns: written under another name, renamed, and the directory synced.
    fn write(&self, run_id: &RunId) -> Result<()> {
        let write = || {
            let directory = self.0.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(directory)?;
            let other = self.0.with_extension("run.tmp");
            let mut file = File::create(&other)?;
            file.write_all(run_id.as_str().as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&other, &self.0)?;
            File::open(directory)?.sync_all()
        };
        write().map_err(|error| self.failed(ErrorCode::WriteFailed, &error))
    }

    fn failed(&self, code: ErrorCode, error: &std::io::Error) -> Error {
        Error::transient(code, format!("file {}: {error}", self.0.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_of_a_source_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = RunFile::new(&directory.path().join("new"), "source");
        assert_eq!(file.read().unwrap(), None);
        let run_id = RunId::generate();
        file.write(&run_id).unwrap();
        assert_eq!(file.read().unwrap(), Some(run_id));
        std::fs::write(&file.0, "run_x").unwrap();
        assert!(!file.read().unwrap_err().is_transient());
    }
}
