//! Following runs: which run a service serves, and when it is finished with it.
//!
//! A service follows the newest run, or serves a configured one; either may be registered before or after the service starts. It is
//! finished with a run once the run has ended and nothing of it is left: only then it takes the next one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backoff::{Backoff, wait_out};
use crate::contracts::RunInfo;
use crate::error::{Error, ErrorCode, Result};
use crate::health::Health;
use crate::resource::{Backlog, Handler, Reading, RunDirectory, TopicReader};
use crate::service::Stop;

/// How long a wait for news of runs lasts at most: news between a read and the wait are found after it.
const DIRECTORY_WAIT: Duration = Duration::from_secs(5);
/// How often the rest of a run that has ended is measured.
const REST_POLL: Duration = Duration::from_millis(250);

/// How long a call may take to notice a stop: it is between two tries of something small.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// What a service does with one run.
#[async_trait]
pub(crate) trait ServeRun: Send + Sync {
    /// Returns once it is finished with the run or a stop is requested, with everything of the run closed.
    async fn serve_run(&self, run: &RunInfo, stop: &mut Stop) -> Result<()>;
}

/// Finds runs for a service.
pub(crate) struct Follower {
    service: String,
    directory: Arc<dyn RunDirectory>,
    /// The only run to serve, if configured.
    run_id: Option<String>,
    health: Arc<Health>,
}

impl Follower {
    pub(crate) fn new(
        service: &str,
        directory: Arc<dyn RunDirectory>,
        run_id: Option<String>,
        health: Arc<Health>,
    ) -> Result<Self> {
        if service.trim().is_empty() {
            return Err(Error::invalid("the name of a service is blank"));
        }
        if run_id.as_deref().is_some_and(|run_id| run_id.trim().is_empty()) {
            return Err(Error::invalid(format!("service {service}: run_id is blank")));
        }
        Ok(Follower { service: service.to_owned(), directory, run_id, health })
    }

    /// Serves one run after the other until a stop is requested, or until the configured run is finished.
    pub(crate) async fn serve_runs(&self, service: &dyn ServeRun, mut stop: Stop) -> Result<()> {
        tracing::info!(service = self.service, "service started");
        let mut finished = None;
        while let Some(run) = self.next(finished.as_deref(), &mut stop).await? {
            tracing::info!(service = self.service, run = run.run_id, state = run.state, "run found");
            self.health.set_run(&run.run_id);
            service.serve_run(&run, &mut stop).await?;
            if stop.is_requested() || self.run_id.is_some() {
                break;
            }
            tracing::info!(service = self.service, run = run.run_id, "run finished");
            finished = Some(run.run_id);
        }
        tracing::info!(service = self.service, "service stopped");
        Ok(())
    }

    /// The next run to serve; `None` if a stop is requested first.
    async fn next(&self, finished: Option<&str>, stop: &mut Stop) -> Result<Option<RunInfo>> {
        let mut backoff = Backoff::new();
        loop {
            if stop.is_requested() {
                return Ok(None);
            }
            let found = match &self.run_id {
                Some(run_id) => self.directory.run(run_id).await,
                None => self.directory.newest(finished).await,
            };
            match found {
                Ok(Some(run)) => return Ok(Some(run)),
                Ok(None) => {
                    backoff = Backoff::new();
                    tokio::select! {
                        () = stop.requested() => {}
                        () = self.directory.changed(DIRECTORY_WAIT) => {}
                    }
                }
                Err(error) if error.is_transient() => {
                    self.warn(&error, "runs not read");
                    backoff.wait(stop).await;
                }
                Err(error) => {
                    self.health.record_error(&error, "runs");
                    return Err(error);
                }
            }
        }
    }

    /// Whether the run has ended, by success or failure. Unknown counts as not ended.
    pub(crate) async fn has_ended(&self, run_id: &str) -> bool {
        match self.directory.run(run_id).await {
            Ok(run) => run.is_some_and(|run| matches!(run.state.as_str(), "ENDED" | "FAILED")),
            Err(error) => {
                self.warn(&error, "state of the run not read");
                false
            }
        }
    }

    /// Waits until the run has ended and the group has settled everything that came or can still come of it.
    ///
    /// Read in the order in which messages move, so that none is missed between two reads: a run is ended after its last tick is in the
    /// queue; what is made of ticks is announced before they are acked; so once the queue is empty, every announcement is in the topic.
    pub(crate) async fn finished(&self, run_id: &str, upstream: Option<&dyn Backlog>, reading: &dyn Reading) {
        while !self.has_ended(run_id).await {
            self.directory.changed(DIRECTORY_WAIT).await;
        }
        let mut backoff = Backoff::new();
        loop {
            match rest(upstream, reading).await {
                Ok(0) => return,
                Ok(_) => tokio::time::sleep(REST_POLL).await,
                Err(error) => {
                    self.warn(&error, "rest of the run not measured");
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    fn warn(&self, error: &Error, what: &'static str) {
        self.health.record_error(error, what);
        tracing::warn!(service = self.service, %error, "{what}");
    }
}

async fn rest(upstream: Option<&dyn Backlog>, reading: &dyn Reading) -> Result<u64> {
    let before = match upstream {
        Some(upstream) => upstream.lag().await?,
        None => 0,
    };
    if before > 0 { Ok(before) } else { reading.lag().await }
}

/// Handles the messages of a topic with a handler whose calls end by themselves once `stop` is requested, until the run is finished or
/// that happens.
pub(crate) async fn serve_topic<T>(
    follower: &Follower,
    run_id: &str,
    topic: &dyn TopicReader<T>,
    handler: Arc<dyn Handler<T>>,
    upstream: Option<&dyn Backlog>,
    stop: &mut Stop,
) -> Result<()> {
    let start = || topic.start(1, Arc::clone(&handler));
    let Some(reading) = wait_out("start of reading", &follower.health, stop, start).await? else {
        return Ok(());
    };
    tokio::select! {
        () = stop.requested() => {}
        () = follower.finished(run_id, upstream, &*reading) => {}
    }
    if let Err(error) = reading.stop(STOP_GRACE).await {
        follower.warn(&error, "last acks not stored");
    }
    Ok(())
}

/// An announcement or a file of another run than the one that is served.
pub(crate) fn check_run(served: &str, found: &str, what: &str) -> Result<()> {
    if served == found {
        return Ok(());
    }
    let message = format!("{what} is of run {found:?}, but run {served} is served");
    Err(Error::permanent(ErrorCode::DecodeFailed, message))
}
