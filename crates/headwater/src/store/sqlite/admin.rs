//! The verbs of operators: each is a transaction on the writer, or a read on a reader.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use super::reader::at_once;
use super::work::{Kind, Work, now_ms};
use super::{
    SqliteStore, acks, audit, cron, dead_letter, doctor, message, migrate, open, outstanding, policy, reader,
    resurrect, schedule, seek, settle, state, status, stuck, topic, work,
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
impl Admin for SqliteStore {
    fn engine(&self) -> &'static str {
        "sqlite"
    }

    async fn create_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic> {
        let (name, settings) = (name.clone(), settings.clone());
        self.write(Kind::Define, move |work| topic::create(work, &name, &settings)).await
    }

    async fn alter_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic> {
        let (name, settings, actor) = (name.clone(), settings.clone(), self.actor.now());
        self.write(Kind::Define, move |work| topic::alter(work, &name, &settings, &actor)).await
    }

    async fn delete_topic(&self, topic: &TopicName, removal: Removal) -> Result<TopicContents> {
        let counted = self.contents(topic).await?;
        if removal == Removal::DryRun {
            return Ok(counted);
        }
        let (name, actor, contents) = (topic.clone(), self.actor.now(), counted.clone());
        self.write(Kind::Define, move |work| topic::delete::delete(work, &name, removal, &contents, &actor))
            .await?;
        if let Err(error) = self.in_steps(Kind::Consume, topic::delete::remove_some).await {
            tracing::info!(%topic, %error, "rows of a deleted topic left to maintenance");
        }
        Ok(counted)
    }

    async fn purge_topic(&self, topic: &TopicName, removal: Removal) -> Result<TopicContents> {
        let counted = self.contents(topic).await?;
        if removal == Removal::DryRun {
            return Ok(counted);
        }
        let (name, actor, contents) = (topic.clone(), self.actor.now(), counted.clone());
        let begin = move |work: &mut Work<'_>| topic::purge::begin(work, &name, removal, &contents, &actor);
        let mut left = Some(self.write(Kind::Define, begin).await?);
        while let Some(purge) = left {
            let began = Instant::now();
            left = self.write(Kind::Consume, move |work| topic::purge::remove_some(work, purge)).await?;
            Self::rest(began).await;
        }
        Ok(counted)
    }

    async fn set_auto_create(&self, auto_create: bool) -> Result<()> {
        let actor = self.actor.now();
        self.write(Kind::Define, move |work| topic::set_auto_create(work, auto_create, &actor)).await
    }

    async fn topic(&self, name: &TopicName) -> Result<Topic> {
        let name = name.clone();
        self.read(move |connection| topic::get(connection, &name)).await
    }

    async fn subscriptions(&self, topic: &TopicName) -> Result<Vec<SubscriptionStatus>> {
        let (topic, now_ms) = (topic.clone(), work::now_ms(&self.clock));
        self.read(move |connection| {
            reader::at_once(connection, |connection| status::list(connection, &topic, now_ms))
        })
        .await
    }

    async fn find_topics(&self, selection: &TopicSelection, limit: u32) -> Result<Vec<TopicStatus>> {
        let selection = selection.clone();
        self.read(move |connection| topic::find_all(connection, &selection, Some(limit))).await
    }

    async fn find_subscriptions(
        &self,
        selection: &GroupSelection,
        limit: u32,
    ) -> Result<(Timestamp, Vec<SurveyedGroup>)> {
        let (selection, now_ms) = (selection.clone(), work::now_ms(&self.clock));
        let found = self.read(move |connection| {
            at_once(connection, |snapshot| status::find(snapshot, &selection, limit, now_ms))
        });
        Ok((Timestamp::from_millisecond(now_ms).unwrap_or_else(|_| Timestamp::now()), found.await?))
    }

    async fn outstanding(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<Outstanding>> {
        let now_ms = work::now_ms(&self.clock);
        self.read(move |connection| outstanding::list(connection, subscription, limit, now_ms)).await
    }

    async fn pause(&self, topic: &TopicName, group: &GroupName, reason: Option<&str>) -> Result<()> {
        self.set_state(topic, group, Transition::Pause, reason).await
    }

    async fn resume(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        self.set_state(topic, group, Transition::Resume, None).await
    }

    async fn cancel(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        self.set_state(topic, group, Transition::Cancel, None).await?;
        if let Err(error) = self.in_steps(Kind::Consume, state::forget_waiting).await {
            // The group is cancelled; maintenance removes the rest.
            tracing::info!(%error, "waiting ranges of a cancelled group left to maintenance");
        }
        Ok(())
    }

    async fn remove(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        let (topic, group, actor) = (topic.clone(), group.clone(), self.actor.now());
        let (name, of) = (topic.clone(), group.clone());
        // Nothing is buried any more for a cancelled group: no dead letter is added between this and the steps.
        let dead_letters = self.read(move |connection| state::dead_letters(connection, &name, &of)).await?;
        let (name, of) = (topic.clone(), group.clone());
        self.in_steps(Kind::Consume, move |work: &mut Work<'_>| {
            state::remove(work, &name, &of, state::Removal::Empty)
        })
        .await?;
        // Waits for the disk, and so for the steps before it.
        self.write(Kind::Define, move |work| {
            state::remove(work, &topic, &group, state::Removal::Delete { actor: &actor, dead_letters })
                .map(drop)
        })
        .await
    }

    async fn resurrect(
        &self,
        topic: &TopicName,
        group: &GroupName,
        behind_max: Option<u64>,
    ) -> Result<Resurrected> {
        let (topic, group, actor) = (topic.clone(), group.clone(), self.actor.now());
        self.write(Kind::Define, move |work| resurrect::resurrect(work, &topic, &group, behind_max, &actor))
            .await
    }

    async fn seek(&self, topic: &TopicName, group: &GroupName, to: Start, dry_run: bool) -> Result<Moved> {
        let (topic, group, actor) = (topic.clone(), group.clone(), self.actor.now());
        let now_ms = now_ms(&self.clock);
        let names = (topic.clone(), group.clone());
        let count = move |connection: &_| {
            at_once(connection, |snapshot| seek::read_plan(snapshot, &names.0, &names.1, to, now_ms))
        };
        let counted = self.read(count).await?;
        if dry_run {
            return Ok(counted);
        }
        self.write(Kind::Define, move |work| seek::seek(work, &topic, &group, to, &counted, &actor)).await
    }

    async fn set_policy(&self, topic: &TopicName, group: &GroupName, policy: &DeliveryPolicy) -> Result<()> {
        let (topic, group, policy) = (topic.clone(), group.clone(), *policy);
        let actor = self.actor.now();
        self.write(Kind::Define, move |work| policy::set(work, &topic, &group, &policy, &actor)).await
    }

    async fn policy(&self, topic: &TopicName, group: &GroupName) -> Result<DeliveryPolicy> {
        let (topic, group) = (topic.clone(), group.clone());
        self.read(move |connection| at_once(connection, |snapshot| policy::get(snapshot, &topic, &group)))
            .await
    }

    async fn release_lease(&self, token: LeaseToken) -> Result<()> {
        let actor = self.actor.now();
        self.write(Kind::Define, move |work| settle::release(work, token, &actor)).await
    }

    async fn message_states(
        &self,
        topic: &TopicName,
        offset: Offset,
    ) -> Result<Vec<(GroupName, MessageState)>> {
        let (topic, now_ms) = (topic.clone(), now_ms(&self.clock));
        self.read(move |connection| {
            at_once(connection, |snapshot| message::states(snapshot, &topic, offset, now_ms))
        })
        .await
    }

    async fn act_on_message(
        &self,
        topic: &TopicName,
        group: &GroupName,
        offset: Offset,
        act: &MessageAct,
        force: bool,
    ) -> Result<()> {
        let (topic, group, act) = (topic.clone(), group.clone(), act.clone());
        let actor = self.actor.now();
        self.write(Kind::Define, move |work| message::act(work, &topic, &group, offset, &act, force, &actor))
            .await
    }

    async fn force_complete(
        &self,
        topic: &TopicName,
        older_than: Duration,
        dry_run: bool,
    ) -> Result<Vec<ForceCompleted>> {
        let (name, now_ms) = (topic.clone(), now_ms(&self.clock));
        let plan = move |connection: &_| {
            at_once(connection, |snapshot| stuck::read_plan(snapshot, &name, older_than, now_ms))
        };
        let planned = self.read(plan).await?;
        if dry_run {
            return Ok(planned.shown());
        }
        let (topic, actor) = (topic.clone(), self.actor.now());
        self.write(Kind::Define, move |work| {
            stuck::force_complete(work, &topic, older_than, &planned, &actor)
        })
        .await
    }

    async fn stuck(&self, topic: &TopicName, older_than: Duration) -> Result<Vec<Stuck>> {
        let (topic, now_ms) = (topic.clone(), now_ms(&self.clock));
        self.read(move |connection| {
            at_once(connection, |snapshot| stuck::stuck(snapshot, &topic, older_than, now_ms))
        })
        .await
    }

    async fn dead_letters(&self, selection: &DeadLetterSelection, limit: u32) -> Result<Vec<DeadLetter>> {
        let selection = selection.clone();
        self.read(move |connection| dead_letter::list(connection, &selection, limit)).await
    }

    async fn count_dead_letters(&self, selection: &DeadLetterSelection) -> Result<Redriven> {
        let selection = selection.clone();
        self.read(move |connection| dead_letter::count_of(connection, &selection)).await
    }

    async fn replace_dead_letter(
        &self,
        subscription: SubscriptionId,
        id: Uuid,
        message: &NewMessage,
        all_groups: bool,
    ) -> Result<Published> {
        let (message, actor) = (message.clone(), self.actor.now());
        self.write(Kind::Define, move |work| {
            dead_letter::replace(work, subscription, id, &message, all_groups, &actor)
        })
        .await
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
        let topic = topic.clone();
        self.read(move |connection| {
            at_once(connection, |snapshot| schedule::list(snapshot, &topic, after, limit))
        })
        .await
    }

    async fn cancel_scheduled(&self, topic: &TopicName, message_id: Uuid) -> Result<bool> {
        let (topic, actor) = (topic.clone(), self.actor.now());
        self.write(Kind::Define, move |work| schedule::cancel(work, &topic, message_id, &actor)).await
    }

    async fn reschedule(&self, topic: &TopicName, message_id: Uuid, to: Reschedule) -> Result<bool> {
        let (topic, actor) = (topic.clone(), self.actor.now());
        self.write(Kind::Define, move |work| schedule::reschedule(work, &topic, message_id, to, &actor)).await
    }

    async fn cron_jobs(&self) -> Result<Vec<CronStatus>> {
        self.read(cron::list).await
    }

    async fn audit_before(&self, audit_id: i64, limit: u32) -> Result<Vec<AuditEntry>> {
        self.read(move |connection| audit::list(connection, audit_id, limit)).await
    }

    async fn note(
        &self,
        act: &str,
        topic: Option<&str>,
        group: Option<&str>,
        detail: &serde_json::Value,
    ) -> Result<()> {
        let (act, topic, group) = (act.to_owned(), topic.map(str::to_owned), group.map(str::to_owned));
        let (detail, actor) = (detail.clone(), self.actor.now());
        self.write(Kind::Define, move |work| {
            audit::note(work, &actor, &act, topic.as_deref(), group.as_deref(), &detail)
        })
        .await
    }

    async fn acks(&self, topic: &TopicName, offset: Offset) -> Result<Vec<Ack>> {
        let topic = topic.clone();
        self.read(move |connection| at_once(connection, |snapshot| acks::list(snapshot, &topic, offset)))
            .await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        let now_ms = work::now_ms(&self.clock);
        self.read(move |connection| doctor::doctor(connection, now_ms)).await
    }

    async fn drop_namespace(&self) -> Result<()> {
        let alone = self.write(Kind::Define, migrate::drop_all).await?;
        self.stop().await?;
        if alone { open::remove_files(&self.location, &self.trust) } else { Ok(()) }
    }

    async fn close(&self) -> Result<()> {
        self.stop().await
    }
}

impl SqliteStore {
    async fn contents(&self, topic: &TopicName) -> Result<TopicContents> {
        let (topic, now_ms) = (topic.clone(), now_ms(&self.clock));
        self.read(move |connection| {
            at_once(connection, |snapshot| topic::delete::contents(snapshot, &topic, now_ms))
        })
        .await
    }

    async fn set_state(
        &self,
        topic: &TopicName,
        group: &GroupName,
        transition: Transition,
        reason: Option<&str>,
    ) -> Result<()> {
        let (topic, group, actor) = (topic.clone(), group.clone(), self.actor.now());
        let reason = reason.map(str::to_owned);
        let set = move |work: &mut Work<'_>| {
            state::set(work, &topic, &group, transition, reason.as_deref(), &actor)
        };
        self.write(Kind::Define, set).await
    }
}
