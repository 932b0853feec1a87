//! Upkeep, step by step: each verb is in the file of its name.

use std::time::Duration;

use async_trait::async_trait;

use super::{PostgresStore, clean, detect, jobs, partitions};
use crate::error::Result;
use crate::maintain::{JobRun, JobStatus};
use crate::name::Owner;
use crate::store::{CleanStep, Detected, PartitionStep, SubscriptionStep, Upkeep};
use crate::topic::TopicId;

#[async_trait]
impl Upkeep for PostgresStore {
    async fn elect(&self, worker: &Owner, term: Duration) -> Result<bool> {
        self.check_open()?;
        detect::elect(self, worker, term).await
    }

    async fn resign(&self, worker: &Owner) -> Result<()> {
        self.check_open()?;
        detect::resign(self, worker).await
    }

    async fn detect_dead(&self) -> Result<Detected> {
        self.check_open()?;
        detect::detect_dead(self).await
    }

    async fn clean(&self, topic: TopicId, messages_max: u32) -> Result<CleanStep> {
        self.check_open()?;
        clean::clean(self, topic, messages_max).await
    }

    async fn keep_partitions(&self, topic: TopicId) -> Result<PartitionStep> {
        self.check_open()?;
        partitions::keep_partitions(self, topic).await
    }

    async fn clean_subscriptions(&self, older_than: Duration) -> Result<SubscriptionStep> {
        self.check_open()?;
        clean::clean_subscriptions(self, older_than).await
    }

    async fn probe(&self) -> Result<()> {
        self.check_open()?;
        jobs::probe(self).await
    }

    async fn jobs(&self) -> Result<Vec<JobStatus>> {
        self.check_open()?;
        jobs::list(self).await
    }

    async fn job_ran(&self, run: &JobRun) -> Result<()> {
        self.check_open()?;
        jobs::ran(self, run).await
    }
}
