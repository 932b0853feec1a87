//! One run of each job: step by step until nothing is left, it is stopped, or its time is over.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::plan::{self, TOPICS_KEPT};
use super::settings::Plan;
use super::stop::StopSignal;
use super::survey::ZeroSubscriptions;
use super::topics::{Known, Reading, Topics};
use super::{Job, JobRun};
use crate::backfill::drive;
use crate::error::{Error, ErrorKind, Result, panic_text};
use crate::name::Owner;
use crate::observe::metrics::{JobMetrics, SurveyMetrics};
use crate::store::{self, Maintained};
use crate::topic::{TopicId, TopicStatus};

/// A round of heads with this many rows may have left some: its statements are bounded. One that promotes large messages ends
/// with fewer, and says whether there are more.
const HEADS_FULL: u64 = 1_000;

/// Runs the jobs in this process.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) store: Arc<dyn store::Maintenance>,
    pub(super) plan: Plan,
    pub(super) owner: Owner,
    pub(super) metrics: JobMetrics,
    pub(super) surveyed: SurveyMetrics,
    pub(super) zero_subscriptions: ZeroSubscriptions,
    /// The topics as last read, for all jobs.
    topics: Topics,
    /// The heads at the last run of message cleanup.
    heads: Mutex<Option<HashMap<TopicId, i64>>>,
}

/// The rows of a run so far.
#[derive(Debug, Default)]
struct Tally {
    rows: u64,
    backlog: u64,
}

/// A run, and the kind of its error if it failed.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) run: JobRun,
    pub(super) kind: Option<ErrorKind>,
}

/// When a run has to end.
#[derive(Debug)]
struct Bounds<'a> {
    stop: &'a StopSignal,
    deadline: Instant,
}

impl Bounds<'_> {
    fn hold(&self) -> bool {
        self.stop.may_continue() && Instant::now() < self.deadline
    }
}

impl Worker {
    pub(super) fn new(store: Arc<dyn store::Maintenance>, plan: Plan, owner: Owner) -> Self {
        Worker {
            store,
            plan,
            owner,
            metrics: JobMetrics::default(),
            surveyed: SurveyMetrics::default(),
            zero_subscriptions: ZeroSubscriptions::default(),
            topics: Topics::default(),
            heads: Mutex::default(),
        }
    }

    /// Runs a job. Any error or panic is in the result: other jobs continue.
    pub(super) async fn run(&self, job: Job, stop: &StopSignal) -> Ran {
        let started = Instant::now();
        let bounds = Bounds { stop, deadline: started + self.plan.run_max };
        let mut tally = Tally::default();
        let worked = AssertUnwindSafe(self.work(job, &mut tally, &bounds)).catch_unwind().await;
        let error = match worked {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some((error.kind(), error.to_string())),
            Err(panic) => Some((ErrorKind::Database, format!("it panicked: {}", panic_text(&*panic)))),
        };
        let kind = error.as_ref().map(|(kind, _)| *kind);
        let Tally { rows, backlog } = tally;
        let run =
            JobRun { job, duration: started.elapsed(), rows, backlog, error: error.map(|(_, text)| text) };
        self.metrics.ran(&run);
        Ran { run, kind }
    }

    async fn work(&self, job: Job, tally: &mut Tally, bounds: &Bounds<'_>) -> Result<()> {
        match job {
            Job::Heads => self.heads(tally, bounds).await,
            Job::DeadDetection => self.detect_dead(tally).await,
            Job::Tracking => self.track(tally, bounds).await,
            Job::MessageCleanup => self.clean(tally, bounds).await,
            Job::Partitions => self.keep_partitions(tally, bounds).await,
            Job::SubscriptionCleanup => self.clean_subscriptions(tally).await,
            Job::EntryCleanup => self.clean_entries(tally, bounds).await,
            Job::Backfill => self.backfill(tally, bounds).await,
            Job::Survey => self.survey().await,
        }
    }

    /// The topics, read again when the last read is too old. One job at a time reads them; meanwhile the others use the
    /// last read, and so does the reading job if the read takes too long.
    pub(super) async fn topics(&self) -> Result<Arc<[TopicStatus]>> {
        let known = match self.topics.known() {
            Known::Current(topics) => return Ok(topics),
            Known::Read(known) => known,
        };
        let _reading = Reading(&self.topics);
        match (tokio::time::timeout(TOPICS_KEPT, self.store.topics()).await, known) {
            (Ok(read), _) => {
                let topics: Arc<[TopicStatus]> = read?.into();
                self.topics.keep(&topics);
                Ok(topics)
            }
            (Err(_), Some(known)) => Ok(known),
            (Err(_), None) => {
                let late = format!("topics not read within {TOPICS_KEPT:?}");
                Err(Error::new(ErrorKind::Unavailable, late))
            }
        }
    }

    async fn heads(&self, tally: &mut Tally, bounds: &Bounds<'_>) -> Result<()> {
        loop {
            let Maintained { promoted, late, gaps_closed, dedup_forgotten, more } =
                self.store.advance_heads().await?;
            let rows = promoted + late + gaps_closed + dedup_forgotten;
            tally.rows += rows;
            if rows < HEADS_FULL && !more {
                return Ok(());
            }
            if !bounds.hold() {
                tally.backlog = rows;
                return Ok(());
            }
        }
    }

    async fn detect_dead(&self, tally: &mut Tally) -> Result<()> {
        let detected = self.store.detect_dead().await?;
        for (topic, group) in &detected.died {
            tracing::warn!(%topic, %group, "subscription declared dead, heartbeat timeout exceeded");
        }
        for (topic, group) in &detected.suspected {
            tracing::info!(%topic, %group, "heartbeat overdue, detection postponed");
        }
        for (topic, group) in &detected.near_timeout {
            tracing::debug!(%topic, %group, "subscription near heartbeat timeout");
        }
        tally.rows += detected.died.len() as u64;
        Ok(())
    }

    async fn track(&self, tally: &mut Tally, bounds: &Bounds<'_>) -> Result<()> {
        let topics = self.topics().await?;
        let turns = self.in_turn(Job::Tracking, ids(&topics, plan::is_tracked), bounds).await;
        tally.rows = turns.rows();
        // Work is left between the watermark and the head, but how much is not known: this is an estimate.
        tally.backlog = turns.left.len() as u64 * u64::from(self.plan.messages_max);
        turns.failed.map_or(Ok(()), Err)
    }

    async fn clean(&self, tally: &mut Tally, bounds: &Bounds<'_>) -> Result<()> {
        let topics = self.topics().await?;
        let turns = self.in_turn(Job::MessageCleanup, ids(&topics, plan::is_cleanable), bounds).await;
        tally.rows = turns.rows();
        let Turns { left, done: removed, failed } = turns;
        let of_left = topics.iter().filter(|status| left.contains(&status.topic.topic_id));
        tally.backlog = of_left
            .map(|status| {
                let done = u64::try_from(status.watermark.0 - status.first.0 + 1).unwrap_or(0);
                let gone = removed.get(&status.topic.topic_id).copied().unwrap_or(0);
                done.saturating_sub(gone).max(1)
            })
            .sum();
        self.compare_with_publishing(&topics, tally);
        failed.map_or(Ok(()), Err)
    }

    /// Reports whether cleanup has been slower than publishing since its last run.
    fn compare_with_publishing(&self, topics: &[TopicStatus], tally: &Tally) {
        let heads: HashMap<TopicId, i64> =
            topics.iter().map(|status| (status.topic.topic_id, status.head.0)).collect();
        let mut then = self.heads.lock().expect("no panic while held");
        let grown = |then: &HashMap<TopicId, i64>| -> u64 {
            let grown = |(topic, head): (&TopicId, &i64)| head - then.get(topic).unwrap_or(&0);
            heads.iter().map(grown).map(|grown| u64::try_from(grown).unwrap_or(0)).sum()
        };
        // Before the first run the heads to compare with are not known.
        let published = then.as_ref().map_or(0, grown);
        *then = Some(heads);
        drop(then);
        let behind = plan::is_behind(tally.rows, published, tally.backlog);
        let changed = self.metrics.set_behind(behind);
        if behind {
            let (removed, backlog) = (tally.rows, tally.backlog);
            tracing::warn!(removed, published, backlog, "cleanup slower than publishing");
        } else if changed {
            tracing::info!("cleanup caught up with publishing");
        }
    }

    async fn keep_partitions(&self, tally: &mut Tally, bounds: &Bounds<'_>) -> Result<()> {
        let topics = self.topics().await?;
        let turns = self.in_turn(Job::Partitions, ids(&topics, plan::is_partitioned), bounds).await;
        tally.rows = turns.rows();
        turns.failed.map_or(Ok(()), Err)
    }

    /// One call: the store continues by itself until nothing is left, and what falls due meanwhile is left for the next
    /// day.
    async fn clean_subscriptions(&self, tally: &mut Tally) -> Result<()> {
        let step = self.store.clean_subscriptions(self.plan.subscription_retention).await?;
        for (topic, group) in &step.zombies {
            tracing::info!(%topic, %group, "dead group moved past removed messages");
        }
        for (topic, group) in &step.deleted {
            tracing::info!(%topic, %group, "subscription deleted");
        }
        tally.rows += (step.zombies.len() + step.deleted.len()) as u64 + step.forgotten;
        if let Some(retention) = self.plan.process_retention {
            tally.rows += self.store.clean_processes(retention).await?;
        }
        Ok(())
    }

    async fn clean_entries(&self, tally: &mut Tally, bounds: &Bounds<'_>) -> Result<()> {
        loop {
            let started = Instant::now();
            let step = self.store.clean_entries(&self.plan.entries).await?;
            let rows = step.inbox + step.outbox;
            tally.rows += rows;
            if !step.more {
                return Ok(());
            }
            if !bounds.hold() {
                tally.backlog = rows;
                return Ok(());
            }
            bounds.stop.rest(self.plan.rest(started.elapsed())).await;
        }
    }

    async fn backfill(&self, tally: &mut Tally, bounds: &Bounds<'_>) -> Result<()> {
        let until = bounds.deadline;
        let driven = drive::run(&*self.store, &self.owner, self.plan.pace, bounds.stop, until, |step| {
            tally.rows += step.changed;
            tally.backlog = step.backfill.total.saturating_sub(step.backfill.processed);
        });
        driven.await
    }

    /// Takes a step for each topic in turn until none has more, so that a large topic does not delay the others. Pauses
    /// between steps. A topic that fails does not stop the others.
    async fn in_turn(&self, job: Job, left: VecDeque<TopicId>, bounds: &Bounds<'_>) -> Turns {
        let mut turns = Turns { left, done: HashMap::new(), failed: None };
        while bounds.hold()
            && let Some(topic) = turns.left.pop_front()
        {
            let started = Instant::now();
            match self.step(job, topic).await {
                Ok((rows, more)) => {
                    *turns.done.entry(topic).or_default() += rows;
                    turns.left.extend(more.then_some(topic));
                }
                Err(error) => {
                    tracing::debug!(job = job.as_str(), %topic, %error, "maintenance step failed");
                    let closed = error.kind() == ErrorKind::Closed;
                    turns.failed.get_or_insert(error);
                    if closed {
                        return turns;
                    }
                }
            }
            if !turns.left.is_empty() {
                bounds.stop.rest(self.plan.rest(started.elapsed())).await;
            }
        }
        turns
    }

    /// One step for one topic: how many rows, and whether there is more.
    async fn step(&self, job: Job, topic: TopicId) -> Result<(u64, bool)> {
        let (store, messages_max) = (&self.store, self.plan.messages_max);
        match job {
            Job::Tracking => {
                let step = store.track(topic, messages_max).await?;
                self.count_released(topic, step.released).await?;
                Ok((step.recorded + step.changed + step.removed, step.more))
            }
            Job::MessageCleanup => {
                let step = store.clean(topic, messages_max).await?;
                Ok((step.removed, step.more))
            }
            Job::Partitions => {
                let step = store.keep_partitions(topic).await?;
                if step.locked {
                    // The next run tries again; meanwhile messages are stored in the default partition.
                    tracing::debug!(%topic, ahead = step.ahead, "partition locked, change postponed");
                }
                Ok((step.created + step.dropped + step.removed, false))
            }
            Job::Heads
            | Job::DeadDetection
            | Job::SubscriptionCleanup
            | Job::EntryCleanup
            | Job::Backfill
            | Job::Survey => {
                unreachable!("{job:?} does not run per topic")
            }
        }
    }

    async fn count_released(&self, topic: TopicId, records: u64) -> Result<()> {
        let topics = if records > 0 { self.topics().await? } else { Arc::default() };
        if let Some(status) = topics.iter().find(|status| status.topic.topic_id == topic) {
            self.surveyed.released(&status.topic.name, records);
        }
        Ok(())
    }

    /// Takes or confirms the maintenance term; true if this process holds it.
    pub(super) async fn elect(&self) -> Result<bool> {
        self.store.elect(&self.owner, plan::TERM).await
    }

    /// Gives up the term.
    pub(super) async fn resign(&self) {
        let resigned = tokio::time::timeout(Duration::from_secs(5), self.store.resign(&self.owner));
        if let Ok(Err(error)) = resigned.await
            && error.kind() != ErrorKind::Closed
        {
            tracing::debug!(%error, "maintenance term not released, it expires by itself");
        }
    }
}

/// The result of stepping through topics in turn.
#[derive(Debug)]
struct Turns {
    /// Topics with more to do.
    left: VecDeque<TopicId>,
    /// Rows per topic.
    done: HashMap<TopicId, u64>,
    /// The first error.
    failed: Option<Error>,
}

impl Turns {
    fn rows(&self) -> u64 {
        self.done.values().sum()
    }
}

/// The topics that a job applies to.
fn ids(topics: &[TopicStatus], is_for: impl Fn(&TopicStatus) -> bool) -> VecDeque<TopicId> {
    topics.iter().filter(|status| is_for(status)).map(|status| status.topic.topic_id).collect()
}
