//! Maintenance in steps. Each step is a write command of its own, so that publishers and consumers run in between.
//!
//! Steps do not wait for the disk: a step that a power cut undoes is repeated, and the state on the disk is
//! consistent. Operations that operators request do wait.

use std::time::Duration;

use async_trait::async_trait;

use super::work::Kind;
use super::{
    SqliteStore, advance_heads, clean, detect, jobs, log, process, reader, retire, survey, topic, work,
};
use crate::error::Result;
use crate::maintenance::{JobRun, JobStatus};
use crate::name::Owner;
use crate::store::maintenance::warn_missed;
use crate::store::{
    CleanStep, Detected, EntryRetention, EntryStep, Maintained, Maintenance, PartitionStep, SubscriptionStep,
    Survey,
};
use crate::topic::{TopicId, TopicStatus};

/// Most messages of one step. Every other writer waits while it runs: a step of this size takes about half a
/// millisecond, and more such steps, with a pause after each, do the same work.
pub(super) const STEP_MESSAGES_MAX: u32 = 100;

#[async_trait]
impl Maintenance for SqliteStore {
    async fn elect(&self, worker: &Owner, term: Duration) -> Result<bool> {
        let worker = worker.clone();
        self.write(Kind::Consume, move |work| jobs::elect(work, &worker, term)).await
    }

    async fn resign(&self, worker: &Owner) -> Result<()> {
        let worker = worker.clone();
        self.write(Kind::Consume, move |work| jobs::resign(work, &worker)).await
    }

    async fn topics(&self) -> Result<Vec<TopicStatus>> {
        self.read(topic::list).await
    }

    async fn advance_heads(&self) -> Result<Maintained> {
        self.write(Kind::Define, advance_heads::advance_heads).await
    }

    async fn detect_dead(&self) -> Result<Detected> {
        self.write(Kind::Define, detect::detect_dead).await
    }

    async fn clean(&self, topic: TopicId, messages_max: u32) -> Result<CleanStep> {
        let messages_max = messages_max.min(STEP_MESSAGES_MAX);
        let pass = self.passes.lock().expect("no panic while held").remove(&topic).unwrap_or_default();
        let (name, step, pass) =
            self.write(Kind::Consume, move |work| clean::clean(work, topic, messages_max, pass)).await?;
        self.passes.lock().expect("no panic while held").insert(topic, pass);
        warn_missed(&name, &step.missed);
        Ok(step)
    }

    /// One file holds everything, clustered by topic: there are no partitions.
    async fn keep_partitions(&self, _topic: TopicId) -> Result<PartitionStep> {
        Ok(PartitionStep::default())
    }

    async fn clean_subscriptions(&self, older_than: Duration) -> Result<SubscriptionStep> {
        retire::clean_subscriptions(self, older_than).await
    }

    async fn clean_entries(&self, retention: &EntryRetention) -> Result<EntryStep> {
        let retention = *retention;
        self.write(Kind::Consume, move |work| retire::clean_entries(work, &retention)).await
    }

    async fn clean_processes(&self, older_than: Duration) -> Result<u64> {
        process::clean(self, older_than).await
    }

    async fn probe(&self) -> Result<()> {
        self.read(log::probe).await
    }

    async fn survey(&self, groups_max: u32) -> Result<Survey> {
        let now_ms = work::now_ms(&self.clock);
        self.read(move |connection| {
            reader::at_once(connection, |snapshot| survey::survey(snapshot, groups_max, now_ms))
        })
        .await
    }

    async fn jobs(&self) -> Result<Vec<JobStatus>> {
        self.read(jobs::list).await
    }

    async fn jobs_ran(&self, runs: &[JobRun]) -> Result<()> {
        let runs = runs.to_vec();
        self.write(Kind::Consume, move |work| runs.iter().try_for_each(|run| jobs::ran(work, run))).await
    }
}
