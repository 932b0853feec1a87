//! Reference counting: see `schema/functions/tracking`. Functions elsewhere call `start_counting`, `stop_counting`,
//! `semantics_changed`, `change_tracking`, `cursor_moved`, `record_late` and the `forget_records…` functions there, and
//! nothing else.

use async_trait::async_trait;

use super::PostgresStore;
use crate::backfill::{Backfill, BackfillLimits, BackfillStep};
use crate::error::Result;
use crate::lease::OffsetRange;
use crate::name::{GroupName, Owner, TopicName};
use crate::store::{Record, TrackStep, Tracking};
use crate::topic::TopicId;

mod backfill;
mod records;
mod step;

#[async_trait]
impl Tracking for PostgresStore {
    async fn track(&self, topic: TopicId, messages_max: u32) -> Result<TrackStep> {
        step::track(self, topic, messages_max).await
    }

    async fn records(&self, topic: &TopicName, range: OffsetRange) -> Result<Vec<Record>> {
        records::list(self, topic, range).await
    }

    async fn backfill(
        &self,
        topic: &TopicName,
        group: &GroupName,
        limits: &BackfillLimits,
    ) -> Result<Backfill> {
        backfill::start(self, topic, group, limits).await
    }

    async fn cancel_backfill(&self, topic: &TopicName, group: &GroupName) -> Result<Backfill> {
        backfill::turn(self, topic, group, false).await
    }

    async fn resume_backfill(&self, topic: &TopicName, group: &GroupName) -> Result<Backfill> {
        backfill::turn(self, topic, group, true).await
    }

    async fn backfills(&self) -> Result<Vec<Backfill>> {
        backfill::list(self).await
    }

    async fn step_backfill(&self, worker: &Owner, messages_max: u32) -> Result<Option<BackfillStep>> {
        backfill::step(self, worker, messages_max).await
    }
}
