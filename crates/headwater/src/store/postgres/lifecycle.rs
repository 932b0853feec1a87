//! The life of topics and subscriptions.

use std::time::Duration;

use async_trait::async_trait;

use super::{PostgresStore, audit, policy, seek, settle, state, take_over, topic};
use crate::error::Result;
use crate::lease::LeaseToken;
use crate::message::Offset;
use crate::name::{GroupName, Owner, TopicName};
use crate::store::{Ack, AuditEntry, ForceCompleted, Lifecycle, Moved, Resurrected, Stuck};
use crate::subscription::{DeliveryPolicy, Start, SubscriptionId, Transition};
use crate::topic::{Topic, TopicSettings};

#[async_trait]
impl Lifecycle for PostgresStore {
    async fn alter_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic> {
        self.check_open()?;
        topic::alter(self, name, settings).await
    }

    async fn pause(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        self.check_open()?;
        state::set(self, topic, group, Transition::Pause).await
    }

    async fn resume(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        self.check_open()?;
        state::set(self, topic, group, Transition::Resume).await
    }

    async fn cancel(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        self.check_open()?;
        state::set(self, topic, group, Transition::Cancel).await
    }

    async fn remove(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        self.check_open()?;
        state::remove(self, topic, group).await
    }

    async fn resurrect(
        &self,
        topic: &TopicName,
        group: &GroupName,
        behind_max: Option<u64>,
    ) -> Result<Resurrected> {
        self.check_open()?;
        state::resurrect(self, topic, group, behind_max).await
    }

    async fn take_over(&self, owner: &Owner) -> Result<u64> {
        self.check_open()?;
        take_over::take_over(self, owner).await
    }

    async fn seek(&self, topic: &TopicName, group: &GroupName, to: Start, dry_run: bool) -> Result<Moved> {
        self.check_open()?;
        seek::seek(self, topic, group, to, dry_run).await
    }

    async fn set_policy(&self, topic: &TopicName, group: &GroupName, policy: &DeliveryPolicy) -> Result<()> {
        self.check_open()?;
        policy::set(self, topic, group, policy).await
    }

    async fn policy(&self, topic: &TopicName, group: &GroupName) -> Result<DeliveryPolicy> {
        self.check_open()?;
        policy::get(self, topic, group).await
    }

    async fn settings_of(
        &self,
        subscriptions: &[SubscriptionId],
    ) -> Result<Vec<(SubscriptionId, TopicSettings)>> {
        self.check_open()?;
        policy::settings_of(self, subscriptions).await
    }

    async fn release_lease(&self, token: LeaseToken) -> Result<()> {
        self.check_open()?;
        settle::release_by_hand(self, token).await
    }

    async fn force_complete(
        &self,
        topic: &TopicName,
        older_than: Duration,
        dry_run: bool,
    ) -> Result<Vec<ForceCompleted>> {
        self.check_open()?;
        seek::force_complete(self, topic, older_than, dry_run).await
    }

    async fn stuck(&self, topic: &TopicName, older_than: Duration) -> Result<Vec<Stuck>> {
        self.check_open()?;
        seek::stuck(self, topic, older_than).await
    }

    async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>> {
        self.check_open()?;
        audit::audit(self, limit).await
    }

    async fn acks(&self, topic: &TopicName, offset: Offset) -> Result<Vec<Ack>> {
        self.check_open()?;
        audit::acks(self, topic, offset).await
    }
}
