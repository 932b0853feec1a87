//! The admin trait, for operators: each verb is in the file of its name.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use super::{
    PostgresStore, Replica, acks, audit, cron, dead_letter, doctor, message, migrate, outstanding, policy,
    schedule, seek, settle, state, status, topic,
};
use crate::dead_letter::{DeadLetter, DeadLetterSelection, Redriven};
use crate::error::Result;
use crate::groups::GroupSelection;
use crate::lease::LeaseToken;
use crate::message::{NewMessage, Offset, Published};
use crate::name::{GroupName, TopicName};
use crate::scheduled::{Reschedule, Scheduled, ScheduledPlace};
use crate::store::{
    Ack, Admin, AuditEntry, CronStatus, Finding, ForceCompleted, Moved, Resurrected, Stuck, SurveyedGroup,
};
use crate::subscription::{
    DeliveryPolicy, MessageAct, MessageState, Outstanding, Start, SubscriptionId, SubscriptionStatus,
    Transition,
};
use crate::topic::{Removal, Topic, TopicContents, TopicSettings, TopicStatus};
use crate::topics::TopicSelection;

#[async_trait]
impl Admin for PostgresStore {
    fn engine(&self) -> &'static str {
        "postgres"
    }

    async fn create_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic> {
        topic::create(self, name, settings).await
    }

    async fn alter_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic> {
        topic::alter(self, name, settings).await
    }

    async fn delete_topic(&self, topic: &TopicName, removal: Removal) -> Result<TopicContents> {
        topic::delete::delete(self, topic, removal).await
    }

    async fn purge_topic(&self, topic: &TopicName, removal: Removal) -> Result<TopicContents> {
        topic::delete::purge(self, topic, removal).await
    }

    async fn topic(&self, name: &TopicName) -> Result<Topic> {
        topic::get(self, name).await
    }

    async fn subscriptions(&self, topic: &TopicName) -> Result<Vec<SubscriptionStatus>> {
        status::list(self, topic).await
    }

    async fn find_topics(&self, selection: &TopicSelection, limit: u32) -> Result<Vec<TopicStatus>> {
        topic::find(self, selection, Some(limit)).await
    }

    async fn find_subscriptions(
        &self,
        selection: &GroupSelection,
        limit: u32,
    ) -> Result<(Timestamp, Vec<SurveyedGroup>)> {
        status::find(self, selection, limit).await
    }

    async fn outstanding(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<Outstanding>> {
        outstanding::list(self, subscription, limit).await
    }

    async fn pause(&self, topic: &TopicName, group: &GroupName, reason: Option<&str>) -> Result<()> {
        state::pause(self, topic, group, reason).await
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

    async fn seek(&self, topic: &TopicName, group: &GroupName, to: Start, dry_run: bool) -> Result<Moved> {
        seek::seek(self, topic, group, to, dry_run).await
    }

    async fn set_policy(&self, topic: &TopicName, group: &GroupName, policy: &DeliveryPolicy) -> Result<()> {
        policy::set(self, topic, group, policy).await
    }

    async fn policy(&self, topic: &TopicName, group: &GroupName) -> Result<DeliveryPolicy> {
        policy::get(self, topic, group).await
    }

    async fn release_lease(&self, token: LeaseToken) -> Result<()> {
        settle::release_by_hand(self, token).await
    }

    async fn message_states(
        &self,
        topic: &TopicName,
        offset: Offset,
    ) -> Result<Vec<(GroupName, MessageState)>> {
        message::states(self, topic, offset).await
    }

    async fn act_on_message(
        &self,
        topic: &TopicName,
        group: &GroupName,
        offset: Offset,
        act: &MessageAct,
        force: bool,
    ) -> Result<()> {
        message::act(self, topic, group, offset, act, force).await
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

    async fn dead_letters(&self, selection: &DeadLetterSelection, limit: u32) -> Result<Vec<DeadLetter>> {
        dead_letter::list(self, selection, limit).await
    }

    async fn count_dead_letters(&self, selection: &DeadLetterSelection) -> Result<Redriven> {
        dead_letter::count_of(self, selection).await
    }

    async fn replace_dead_letter(
        &self,
        subscription: SubscriptionId,
        id: Uuid,
        message: &NewMessage,
        all_groups: bool,
    ) -> Result<Published> {
        dead_letter::replace(self, subscription, id, message, all_groups).await
    }

    async fn redrive(&self, selection: &DeadLetterSelection) -> Result<Redriven> {
        dead_letter::redrive(self, selection).await
    }

    async fn purge(&self, selection: &DeadLetterSelection) -> Result<u64> {
        dead_letter::purge(self, selection).await
    }

    async fn scheduled_after(
        &self,
        topic: &TopicName,
        after: Option<ScheduledPlace>,
        limit: u32,
    ) -> Result<Vec<Scheduled>> {
        schedule::list(self, topic, after, limit).await
    }

    async fn cancel_scheduled(&self, topic: &TopicName, message_id: Uuid) -> Result<bool> {
        schedule::cancel(self, topic, message_id).await
    }

    async fn reschedule(&self, topic: &TopicName, message_id: Uuid, to: Reschedule) -> Result<bool> {
        schedule::reschedule(self, topic, message_id, to).await
    }

    async fn cron_jobs(&self) -> Result<Vec<CronStatus>> {
        cron::list(self).await
    }

    async fn audit_before(&self, audit_id: i64, limit: u32) -> Result<Vec<AuditEntry>> {
        audit::list(self, audit_id, limit).await
    }

    async fn note(
        &self,
        act: &str,
        topic: Option<&str>,
        group: Option<&str>,
        detail: &serde_json::Value,
    ) -> Result<()> {
        audit::note(self, act, topic, group, detail).await
    }

    async fn acks(&self, topic: &TopicName, offset: Offset) -> Result<Vec<Ack>> {
        acks::list(self, topic, offset).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::doctor(self).await
    }

    async fn drop_namespace(&self) -> Result<()> {
        self.vacuums.stop(self).await;
        migrate::drop_namespace(&self.connections, &self.namespace).await?;
        self.close().await
    }

    async fn close(&self) -> Result<()> {
        self.listener.stop();
        self.prover.stop();
        self.vacuums.stop(self).await;
        self.connections.close();
        self.replica.iter().for_each(Replica::close);
        self.hub.wake_all();
        Ok(())
    }
}
