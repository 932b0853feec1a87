//! The life of topics and subscriptions.

use std::time::Duration;

use async_trait::async_trait;

use super::{PostgresStore, audit, beat, policy, seek, settle, state, take_over, topic};
use crate::error::Result;
use crate::lease::{LeaseToken, OffsetRange};
use crate::message::Offset;
use crate::name::{GroupName, Owner, TopicName};
use crate::store::{
    Ack, AuditEntry, Beat, ForceCompleted, Lifecycle, Moved, Pulse, Record, Resurrected, Stuck,
};
use crate::subscription::{DeliveryPolicy, Start, SubscriptionId, Transition};
use crate::topic::{Topic, TopicSettings};

#[async_trait]
impl Lifecycle for PostgresStore {
    async fn alter_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic> {
        topic::alter(self, name, settings).await
    }

    async fn pause(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        state::set(self, topic, group, Transition::Pause).await
    }

    async fn resume(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        state::set(self, topic, group, Transition::Resume).await
    }

    async fn cancel(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        state::set(self, topic, group, Transition::Cancel).await
    }

    async fn remove(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        state::remove(self, topic, group).await
    }

    async fn resurrect(
        &self,
        topic: &TopicName,
        group: &GroupName,
        behind_max: Option<u64>,
    ) -> Result<Resurrected> {
        state::resurrect(self, topic, group, behind_max).await
    }

    async fn beat(&self, owner: &Owner, beats: &[Beat]) -> Result<Vec<Pulse>> {
        beat::beat(self, owner, beats).await
    }

    async fn take_over(&self, owner: &Owner) -> Result<u64> {
        take_over::take_over(self, owner).await
    }

    async fn seek(&self, topic: &TopicName, group: &GroupName, to: Start, dry_run: bool) -> Result<Moved> {
        seek::seek(self, topic, group, to, dry_run).await
    }

    async fn set_policy(&self, topic: &TopicName, group: &GroupName, policy: &DeliveryPolicy) -> Result<()> {
        policy::set(self, topic, group, policy).await
    }

    async fn policy(&self, topic: &TopicName, group: &GroupName) -> Result<DeliveryPolicy> {
        policy::get(self, topic, group).await
    }

    async fn settings_of(
        &self,
        subscriptions: &[SubscriptionId],
    ) -> Result<Vec<(SubscriptionId, TopicSettings)>> {
        policy::settings_of(self, subscriptions).await
    }

    async fn release_lease(&self, token: LeaseToken) -> Result<()> {
        settle::release_by_hand(self, token).await
    }

    async fn force_complete(
        &self,
        topic: &TopicName,
        older_than: Duration,
        dry_run: bool,
    ) -> Result<Vec<ForceCompleted>> {
        seek::force_complete(self, topic, older_than, dry_run).await
    }

    async fn stuck(&self, topic: &TopicName, older_than: Duration) -> Result<Vec<Stuck>> {
        seek::stuck(self, topic, older_than).await
    }

    async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>> {
        audit::audit(self, limit).await
    }

    async fn acks(&self, topic: &TopicName, offset: Offset) -> Result<Vec<Ack>> {
        audit::acks(self, topic, offset).await
    }

    async fn records(&self, topic: &TopicName, range: OffsetRange) -> Result<Vec<Record>> {
        super::records::list(self, topic, range).await
    }
}
