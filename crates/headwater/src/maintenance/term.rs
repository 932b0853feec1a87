//! The life cycle of a maintenance process: candidate, elected for a term, confirmed while it runs, and replaced at the
//! end.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::Instant;

use super::jobs::{Ran, Worker};
use super::plan::{BUSY_RECORDED, CANDIDATE, QUIET_RECORDED, RENEW, TERM, TOPICS_KEPT, at_least, jittered};
use super::stop::StopSignal;
use super::{Job, JobRun};
use crate::error::{Error, ErrorKind, Result};

/// How a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// This process was stopped.
    Stopped,
    /// Another process is elected, or may be.
    Lost,
    /// The store was closed.
    Closed,
}

/// Runs until it is stopped, or until the store is closed.
pub(super) async fn run(worker: Worker, stop: StopSignal) {
    let mut failing = false;
    while stop.may_continue() {
        // Measured before the call: the database's term begins later, so this one never outlasts it.
        let until = Instant::now() + TERM;
        match elect(&worker, until).await {
            Ok(true) => {
                failing = false;
                tracing::info!(worker = %worker.owner, "maintenance term taken over");
                worker.metrics.set_elected(true);
                let end = serve(&worker, &stop, until).await;
                worker.metrics.set_elected(false);
                worker.surveyed.clear();
                match end {
                    End::Stopped => worker.resign().await,
                    End::Lost => tracing::info!(worker = %worker.owner, "maintenance term lost"),
                    End::Closed => return,
                }
            }
            Ok(false) => failing = false,
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) => {
                // Logged once per outage: consumers log the outage often enough.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "maintenance election failed, retrying");
                }
            }
        }
        stop.rest(jittered(CANDIDATE, rand::random())).await;
    }
}

/// Takes or confirms the term. An answer after `until` counts as none.
async fn elect(worker: &Worker, until: Instant) -> Result<bool> {
    let late = |_| Err(Error::new(ErrorKind::Unavailable, "no answer to the election within the term"));
    tokio::time::timeout_at(until, worker.elect()).await.unwrap_or_else(late)
}

/// Runs all jobs when they are due, for as long as the term is confirmed.
async fn serve(worker: &Worker, stop: &StopSignal, until: Instant) -> End {
    let (on, elected) = watch::channel(true);
    let elected = StopSignal::while_true(elected);
    let jobs = Job::ALL.map(|job| keep(worker, job, &elected));
    let confirming = async {
        let end = confirm(worker, stop, until).await;
        // Jobs check it at their next step; the step under way ends first.
        on.send_replace(false);
        end
    };
    let (end, _) = tokio::join!(confirming, join_all(jobs));
    end
}

/// Confirms the term until this process is stopped or the term is lost.
async fn confirm(worker: &Worker, stop: &StopSignal, mut until: Instant) -> End {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if !stop.rest(RENEW.min(left)).await {
            return End::Stopped;
        }
        let again_until = Instant::now() + TERM;
        // At most until the term ends: after that the process must not act on an answer.
        match elect(worker, until).await {
            Ok(true) => until = again_until,
            Ok(false) => return End::Lost,
            Err(error) if error.kind() == ErrorKind::Closed => return End::Closed,
            Err(error) => tracing::debug!(%error, "maintenance term not confirmed, retrying"),
        }
        if Instant::now() >= until {
            return End::Lost;
        }
    }
}

/// Runs one job whenever it is due.
pub(super) async fn keep(worker: &Worker, job: Job, elected: &StopSignal) {
    let mut failures = 0;
    let mut left = false;
    let mut took = Duration::ZERO;
    let mut record = Record::default();
    let mut since = Instant::now();
    let mut chance: f64 = rand::random();
    let mut first = true;
    loop {
        // Computed again every few seconds: a topic with a short timeout may have been created.
        loop {
            let topics = worker.topics().await.unwrap_or_default();
            let pause = match failures {
                0 if first => worker.plan.first(job, &topics, chance),
                0 => jittered(worker.plan.interval(job, &topics, left), chance).max(at_least(job, took)),
                failures => jittered(worker.plan.backoff(job, failures), chance),
            };
            let due_in = (since + pause).saturating_duration_since(Instant::now());
            if due_in.is_zero() {
                break;
            }
            if !elected.rest(due_in.min(TOPICS_KEPT)).await {
                return;
            }
        }
        // The term may have been lost while topics were read.
        if !elected.may_continue() {
            return;
        }
        let Ran { run, kind } = worker.run(job, elected).await;
        if kind == Some(ErrorKind::Closed) {
            return;
        }
        (first, left, since, chance) = (false, run.backlog > 0, Instant::now(), rand::random());
        took = run.duration;
        failures = if let Some(error) = &run.error {
            let again_in = worker.plan.backoff(job, failures + 1);
            tracing::warn!(job = job.as_str(), error, ?again_in, "maintenance job failed");
            failures + 1
        } else {
            0
        };
        if let Some(run) = record.add(run)
            && let Err(error) = worker.store.jobs_ran(&[run]).await
        {
            tracing::debug!(job = job.as_str(), %error, "maintenance run not recorded");
        }
    }
}

/// Which runs are recorded. A frequent job that finds nothing to do must not cost a write each second: such runs are
/// recorded once a minute, those that did something every ten seconds, with all rows since; failures always.
#[derive(Debug, Default)]
struct Record {
    rows: u64,
    recorded_at: Option<Instant>,
    failed: bool,
}

impl Record {
    /// The run to record now, if any.
    fn add(&mut self, run: JobRun) -> Option<JobRun> {
        self.rows += run.rows;
        let age = self.recorded_at.map_or(Duration::MAX, |at| at.elapsed());
        let after = if self.rows > 0 { BUSY_RECORDED } else { QUIET_RECORDED };
        let failure_changes = run.error.is_some() || self.failed;
        if age < after && !failure_changes {
            return None;
        }
        (self.recorded_at, self.failed) = (Some(Instant::now()), run.error.is_some());
        Some(JobRun { rows: std::mem::take(&mut self.rows), ..run })
    }
}
