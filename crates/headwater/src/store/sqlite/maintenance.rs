//! Maintenance, step by step. Each step is a write command of its own, so that publishers and consumers get in between.
//!
//! Steps do not wait for the disk: one that a power cut takes back is done again, and whatever is on the disk is
//! consistent. What operators ask for does.

use std::time::Duration;

use async_trait::async_trait;

use super::work::Kind;
use super::{
    SqliteStore, advance_heads, backfill, clean, detect, jobs, reader, retire, topic, tracking, work,
};
use crate::backfill::{Backfill, BackfillStep};
use crate::error::Result;
use crate::maintain::{JobRun, JobStatus};
use crate::name::Owner;
use crate::store::maintenance::warn_missed;
use crate::store::{
    CleanStep, Detected, Maintained, Maintenance, PartitionStep, SubscriptionStep, TrackStep,
};
use crate::topic::{TopicId, TopicStatus};

/// Most messages of one step. Every other writer waits while it runs: a step of this size takes a few milliseconds, and more
/// of them, with a rest after each, do the same work.
const STEP_MESSAGES_MAX: u32 = 1_000;

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

    async fn track(&self, topic: TopicId, messages_max: u32) -> Result<TrackStep> {
        let messages_max = messages_max.min(STEP_MESSAGES_MAX);
        self.write(Kind::Consume, move |work| tracking::track(work, topic, messages_max)).await
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

    /// One file holds everything, clustered by topic: there is nothing to cut.
    async fn keep_partitions(&self, _topic: TopicId) -> Result<PartitionStep> {
        Ok(PartitionStep::default())
    }

    async fn clean_subscriptions(&self, older_than: Duration) -> Result<SubscriptionStep> {
        retire::clean_subscriptions(self, older_than).await
    }

    async fn backfills(&self) -> Result<Vec<Backfill>> {
        let now_ms = work::now_ms(&self.clock);
        self.read(move |connection| {
            reader::at_once(connection, |connection| backfill::list(connection, now_ms))
        })
        .await
    }

    async fn step_backfill(&self, worker: &Owner, messages_max: u32) -> Result<Option<BackfillStep>> {
        let (worker, messages_max) = (worker.clone(), messages_max.min(STEP_MESSAGES_MAX));
        let step = self.write(Kind::Consume, move |work| backfill::step(work, &worker, messages_max)).await?;
        if let Some(BackfillStep { backfill: Backfill { topic, group, error: Some(error), .. }, .. }) = &step
        {
            tracing::error!(%topic, %group, error, "a backfill failed");
        }
        Ok(step)
    }

    async fn probe(&self) -> Result<()> {
        self.read(jobs::probe).await
    }

    async fn jobs(&self) -> Result<Vec<JobStatus>> {
        self.read(jobs::list).await
    }

    async fn job_ran(&self, run: &JobRun) -> Result<()> {
        let run = run.clone();
        self.write(Kind::Consume, move |work| jobs::ran(work, &run)).await
    }
}
