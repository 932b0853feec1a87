//! The life of topics and subscriptions.

use std::time::Duration;

use async_trait::async_trait;

use super::SqliteStore;
use crate::error::Result;
use crate::lease::{LeaseToken, OffsetRange};
use crate::message::Offset;
use crate::name::{GroupName, Owner, TopicName};
use crate::store::{
    Ack, AuditEntry, Beat, ForceCompleted, Lifecycle, Moved, Pulse, Record, Resurrected, Stuck,
};
use crate::subscription::{DeliveryPolicy, Start, Transition};
use crate::topic::{Topic, TopicSettings};

#[async_trait]
impl Lifecycle for SqliteStore {
    async fn alter_topic(&self, _name: &TopicName, _settings: &TopicSettings) -> Result<Topic> {
        todo!()
    }

    async fn shift(&self, _topic: &TopicName, _group: &GroupName, _transition: Transition) -> Result<()> {
        todo!()
    }

    async fn remove(&self, _topic: &TopicName, _group: &GroupName) -> Result<()> {
        todo!()
    }

    async fn resurrect(
        &self,
        _topic: &TopicName,
        _group: &GroupName,
        _behind_max: Option<u64>,
    ) -> Result<Resurrected> {
        todo!()
    }

    async fn beat(&self, _owner: &Owner, _beats: &[Beat]) -> Result<Vec<Pulse>> {
        todo!()
    }

    async fn seek(
        &self,
        _topic: &TopicName,
        _group: &GroupName,
        _to: Start,
        _dry_run: bool,
    ) -> Result<Moved> {
        todo!()
    }

    async fn set_policy(
        &self,
        _topic: &TopicName,
        _group: &GroupName,
        _policy: &DeliveryPolicy,
    ) -> Result<()> {
        todo!()
    }

    async fn policy(&self, _topic: &TopicName, _group: &GroupName) -> Result<DeliveryPolicy> {
        todo!()
    }

    async fn release_lease(&self, _token: LeaseToken) -> Result<()> {
        todo!()
    }

    async fn force_complete(
        &self,
        _topic: &TopicName,
        _older_than: Duration,
        _dry_run: bool,
    ) -> Result<Vec<ForceCompleted>> {
        todo!()
    }

    async fn stuck(&self, _topic: &TopicName, _older_than: Duration) -> Result<Vec<Stuck>> {
        todo!()
    }

    async fn audit(&self, _limit: u32) -> Result<Vec<AuditEntry>> {
        todo!()
    }

    async fn acks(&self, _topic: &TopicName, _offset: Offset) -> Result<Vec<Ack>> {
        todo!()
    }

    async fn records(&self, _topic: &TopicName, _range: OffsetRange) -> Result<Vec<Record>> {
        todo!()
    }
}
