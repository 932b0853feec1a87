//! Upkeep, step by step.

use std::time::Duration;

use async_trait::async_trait;

use super::SqliteStore;
use crate::backfill::{Backfill, BackfillLimits, BackfillStep};
use crate::error::Result;
use crate::maintain::{JobRun, JobStatus};
use crate::name::{GroupName, Owner, TopicName};
use crate::store::{CleanStep, Detected, PartitionStep, SubscriptionStep, TrackStep, Upkeep};
use crate::topic::TopicId;

#[async_trait]
impl Upkeep for SqliteStore {
    async fn elect(&self, _worker: &Owner, _term: Duration) -> Result<bool> {
        todo!()
    }

    async fn resign(&self, _worker: &Owner) -> Result<()> {
        todo!()
    }

    async fn detect_dead(&self) -> Result<Detected> {
        todo!()
    }

    async fn track(&self, _topic: TopicId, _messages_max: u32) -> Result<TrackStep> {
        todo!()
    }

    async fn clean(&self, _topic: TopicId, _messages_max: u32) -> Result<CleanStep> {
        todo!()
    }

    async fn keep_partitions(&self, _topic: TopicId) -> Result<PartitionStep> {
        todo!()
    }

    async fn clean_subscriptions(&self, _older_than: Duration) -> Result<SubscriptionStep> {
        todo!()
    }

    async fn backfill(
        &self,
        _topic: &TopicName,
        _group: &GroupName,
        _limits: &BackfillLimits,
    ) -> Result<Backfill> {
        todo!()
    }

    async fn cancel_backfill(&self, _topic: &TopicName, _group: &GroupName) -> Result<Backfill> {
        todo!()
    }

    async fn resume_backfill(&self, _topic: &TopicName, _group: &GroupName) -> Result<Backfill> {
        todo!()
    }

    async fn backfills(&self) -> Result<Vec<Backfill>> {
        todo!()
    }

    async fn step_backfill(&self, _worker: &Owner, _messages_max: u32) -> Result<Option<BackfillStep>> {
        todo!()
    }

    async fn probe(&self) -> Result<()> {
        todo!()
    }

    async fn jobs(&self) -> Result<Vec<JobStatus>> {
        todo!()
    }

    async fn job_ran(&self, _run: &JobRun) -> Result<()> {
        todo!()
    }
}
