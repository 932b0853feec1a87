//! The maintenance trait: each verb is in the file of its name.

use std::time::Duration;

use async_trait::async_trait;

use super::{PostgresStore, advance_heads, clean, detect, jobs, partitions, process, survey, topic};
use crate::error::Result;
use crate::maintenance::{JobRun, JobStatus};
use crate::name::Owner;
use crate::store::{
    CleanStep, Detected, EntryRetention, EntryStep, Maintained, Maintenance, PartitionStep, SubscriptionStep,
    Survey,
};
use crate::topic::{TopicId, TopicStatus};

#[async_trait]
impl Maintenance for PostgresStore {
    async fn elect(&self, worker: &Owner, term: Duration) -> Result<bool> {
        jobs::elect(self, worker, term).await
    }

    async fn resign(&self, worker: &Owner) -> Result<()> {
        jobs::resign(self, worker).await
    }

    async fn topics(&self) -> Result<Vec<TopicStatus>> {
        topic::list(self).await
    }

    async fn advance_heads(&self) -> Result<Maintained> {
        advance_heads::advance_heads(self).await
    }

    async fn detect_dead(&self) -> Result<Detected> {
        detect::detect_dead(self).await
    }

    async fn clean(&self, topic: TopicId, messages_max: u32) -> Result<CleanStep> {
        clean::clean(self, topic, messages_max).await
    }

    async fn keep_partitions(&self, topic: TopicId) -> Result<PartitionStep> {
        partitions::keep_partitions(self, topic).await
    }

    async fn clean_subscriptions(&self, older_than: Duration) -> Result<SubscriptionStep> {
        clean::clean_subscriptions(self, older_than).await
    }

    async fn clean_entries(&self, retention: &EntryRetention) -> Result<EntryStep> {
        clean::clean_entries(self, retention).await
    }

    async fn clean_processes(&self, older_than: Duration) -> Result<u64> {
        process::clean(self, older_than).await
    }

    async fn probe(&self) -> Result<()> {
        jobs::probe(self).await
    }

    async fn survey(&self, groups_max: u32) -> Result<Survey> {
        survey::survey(self, groups_max).await
    }

    async fn jobs(&self) -> Result<Vec<JobStatus>> {
        jobs::list(self).await
    }

    async fn jobs_ran(&self, runs: &[JobRun]) -> Result<()> {
        jobs::ran(self, runs).await
    }
}
