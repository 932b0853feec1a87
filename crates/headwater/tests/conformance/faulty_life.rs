//! The faults that operators and maintenance encounter.

use std::time::Duration;

use async_trait::async_trait;
use headwater::store::{
    Ack, Admin, AuditEntry, Backfill, BackfillLimits, BackfillStep, CleanStep, CronStatus, DeadLetter,
    DeadLetterSelection, Detected, EntryRetention, EntryStep, Finding, ForceCompleted, GroupSelection,
    JobRun, JobStatus, LeaseToken, Maintained, Maintenance, MessageAct, MessageState, MissedMessages, Moved,
    OffsetRange, Outstanding, Owner, PartitionStep, Record, Redriven, Reschedule, Resurrected, Scheduled,
    ScheduledPlace, Stuck, SubscriptionId, SubscriptionStatus, SubscriptionStep, Survey, SurveyedGroup,
    Topic, TopicId, TopicSelection, TopicStatus, TrackStep, Tracking,
};
use headwater::topic::{Removal, Semantics, TopicContents};
use headwater::{
    DeliveryPolicy, ErrorKind, GroupName, NewMessage, Offset, Published, Result, Start, SubscriptionState,
    TopicName, TopicSettings,
};
use jiff::Timestamp;
use uuid::Uuid;

use super::{Fault, Faulty};

impl Faulty {
    /// The groups of a topic, with its name.
    async fn groups(&self, topic: TopicId) -> Result<(TopicName, Vec<SubscriptionStatus>)> {
        let topics = self.inner.topics().await?;
        let status = topics.into_iter().find(|status| status.topic.topic_id == topic);
        let name = status.expect("the topic exists").topic.name;
        let groups = self.inner.subscriptions(&name).await?;
        Ok((name, groups))
    }

    /// The answer to a change of state, or a success for what was refused.
    fn accepted(&self, answer: Result<()>) -> Result<()> {
        match answer {
            Err(error)
                if self.fault == Fault::TransitionIsAccepted
                    && error.kind() == ErrorKind::InvalidTransition =>
            {
                Ok(())
            }
            answer => answer,
        }
    }

    async fn states(&self, topic: TopicId) -> Result<Vec<SubscriptionState>> {
        Ok(self.groups(topic).await?.1.iter().map(|status| status.state).collect())
    }

    /// Moves every group that counts, or that is dead, past everything.
    async fn skip_all(&self, topic: TopicId, dead: bool) -> Result<()> {
        let (name, groups) = self.groups(topic).await?;
        let skipped = |status: &&SubscriptionStatus| {
            let counts = status.state.counts(Semantics::PubSub);
            if dead { status.state == SubscriptionState::Dead } else { counts }
        };
        for status in groups.iter().filter(skipped) {
            self.inner.seek(&name, &status.group, Start::Now, false).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Admin for Faulty {
    fn engine(&self) -> &'static str {
        self.inner.engine()
    }

    async fn create_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic> {
        self.inner.create_topic(name, settings).await
    }

    async fn alter_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic> {
        let kept = self.fault == Fault::SettingIsForgotten;
        let settings = TopicSettings {
            zombie_subscription_ttl: if kept {
                TopicSettings::default().zombie_subscription_ttl
            } else {
                settings.zombie_subscription_ttl
            },
            ..settings.clone()
        };
        self.inner.alter_topic(name, &settings).await
    }

    async fn delete_topic(&self, topic: &TopicName, removal: Removal) -> Result<TopicContents> {
        let forced = self.fault == Fault::ServedTopicIsDeleted && removal == Removal::Unserved;
        self.inner.delete_topic(topic, if forced { Removal::Forced } else { removal }).await
    }

    async fn purge_topic(&self, topic: &TopicName, removal: Removal) -> Result<TopicContents> {
        let dry = self.fault == Fault::PurgeRemovesNothing;
        self.inner.purge_topic(topic, if dry { Removal::DryRun } else { removal }).await
    }

    async fn topic(&self, name: &TopicName) -> Result<Topic> {
        self.inner.topic(name).await
    }

    async fn subscriptions(&self, topic: &TopicName) -> Result<Vec<SubscriptionStatus>> {
        let mut all = self.inner.subscriptions(topic).await?;
        for status in &mut all {
            match self.fault {
                Fault::MissedIsHidden => status.missed = MissedMessages::default(),
                Fault::RestartsAreHidden => status.restarts = 0,
                _ => {}
            }
        }
        Ok(all)
    }

    async fn find_topics(&self, selection: &TopicSelection, limit: u32) -> Result<Vec<TopicStatus>> {
        self.inner.find_topics(selection, limit).await
    }

    async fn find_subscriptions(
        &self,
        selection: &GroupSelection,
        limit: u32,
    ) -> Result<(Timestamp, Vec<SurveyedGroup>)> {
        let (now, mut found) = self.inner.find_subscriptions(selection, limit).await?;
        if self.fault == Fault::PageLosesOne && found.len() > 1 {
            found.remove(1);
        }
        Ok((now, found))
    }

    async fn outstanding(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<Outstanding>> {
        let mut ranges = self.inner.outstanding(subscription, limit).await?;
        if self.fault == Fault::OwnerIsHidden {
            ranges.iter_mut().for_each(|range| range.owner = None);
        }
        Ok(ranges)
    }

    async fn pause(&self, topic: &TopicName, group: &GroupName, reason: Option<&str>) -> Result<()> {
        match self.fault {
            Fault::PauseIsIgnored => Ok(()),
            _ => self.accepted(self.inner.pause(topic, group, reason).await),
        }
    }

    async fn resume(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        match self.fault {
            Fault::PauseIsIgnored => Ok(()),
            _ => self.accepted(self.inner.resume(topic, group).await),
        }
    }

    async fn cancel(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        match self.fault {
            Fault::CancelledStillCounts => self.inner.pause(topic, group, None).await,
            _ => self.accepted(self.inner.cancel(topic, group).await),
        }
    }

    async fn remove(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
        self.inner.remove(topic, group).await
    }

    async fn resurrect(
        &self,
        topic: &TopicName,
        group: &GroupName,
        behind_max: Option<u64>,
    ) -> Result<Resurrected> {
        self.inner.resurrect(topic, group, behind_max).await
    }

    async fn seek(&self, topic: &TopicName, group: &GroupName, to: Start, dry_run: bool) -> Result<Moved> {
        self.inner.seek(topic, group, to, dry_run && self.fault != Fault::DryRunIsReal).await
    }

    async fn set_policy(&self, topic: &TopicName, group: &GroupName, policy: &DeliveryPolicy) -> Result<()> {
        if self.fault == Fault::PolicyIsForgotten {
            return Ok(());
        }
        self.inner.set_policy(topic, group, policy).await
    }

    async fn policy(&self, topic: &TopicName, group: &GroupName) -> Result<DeliveryPolicy> {
        self.inner.policy(topic, group).await
    }

    async fn release_lease(&self, token: LeaseToken) -> Result<()> {
        self.inner.release_lease(token).await
    }

    async fn message_states(
        &self,
        topic: &TopicName,
        offset: Offset,
    ) -> Result<Vec<(GroupName, MessageState)>> {
        self.inner.message_states(topic, offset).await
    }

    async fn act_on_message(
        &self,
        topic: &TopicName,
        group: &GroupName,
        offset: Offset,
        act: &MessageAct,
        force: bool,
    ) -> Result<()> {
        let force = force || self.fault == Fault::LeasedMessageIsSkipped;
        self.inner.act_on_message(topic, group, offset, act, force).await
    }

    async fn force_complete(
        &self,
        topic: &TopicName,
        older_than: Duration,
        dry_run: bool,
    ) -> Result<Vec<ForceCompleted>> {
        self.inner.force_complete(topic, older_than, dry_run).await
    }

    async fn stuck(&self, topic: &TopicName, older_than: Duration) -> Result<Vec<Stuck>> {
        if self.fault == Fault::StuckIsHidden {
            return Ok(Vec::new());
        }
        self.inner.stuck(topic, older_than).await
    }

    async fn dead_letters(&self, selection: &DeadLetterSelection, limit: u32) -> Result<Vec<DeadLetter>> {
        self.inner.dead_letters(selection, limit).await
    }

    async fn count_dead_letters(&self, selection: &DeadLetterSelection) -> Result<Redriven> {
        self.inner.count_dead_letters(selection).await
    }

    async fn replace_dead_letter(
        &self,
        subscription: SubscriptionId,
        id: uuid::Uuid,
        message: &NewMessage,
        all_groups: bool,
    ) -> Result<Published> {
        let all_groups = all_groups || self.fault == Fault::EditedCopyGoesToAll;
        self.inner.replace_dead_letter(subscription, id, message, all_groups).await
    }

    async fn redrive(&self, selection: &DeadLetterSelection) -> Result<Redriven> {
        self.inner.redrive(selection).await
    }

    async fn purge(&self, selection: &DeadLetterSelection) -> Result<u64> {
        self.inner.purge(selection).await
    }

    async fn scheduled_after(
        &self,
        topic: &TopicName,
        after: Option<ScheduledPlace>,
        limit: u32,
    ) -> Result<Vec<Scheduled>> {
        self.inner.scheduled_after(topic, after, limit).await
    }

    async fn cancel_scheduled(&self, topic: &TopicName, message_id: Uuid) -> Result<bool> {
        match self.fault {
            Fault::CancelledIsDelivered => Ok(true),
            _ => self.inner.cancel_scheduled(topic, message_id).await,
        }
    }

    async fn reschedule(&self, topic: &TopicName, message_id: Uuid, to: Reschedule) -> Result<bool> {
        self.inner.reschedule(topic, message_id, to).await
    }

    async fn cron_jobs(&self) -> Result<Vec<CronStatus>> {
        self.inner.cron_jobs().await
    }

    async fn note(
        &self,
        act: &str,
        topic: Option<&str>,
        group: Option<&str>,
        detail: &serde_json::Value,
    ) -> Result<()> {
        self.inner.note(act, topic, group, detail).await
    }

    async fn audit_before(&self, audit_id: i64, limit: u32) -> Result<Vec<AuditEntry>> {
        let mut lines = self.inner.audit_before(audit_id, limit).await?;
        if self.fault == Fault::AuditForgetsOne {
            lines.retain(|line| line.act != "seek");
        }
        Ok(lines)
    }

    async fn acks(&self, topic: &TopicName, offset: Offset) -> Result<Vec<Ack>> {
        if self.fault == Fault::AckLogIsEmpty {
            return Ok(Vec::new());
        }
        self.inner.acks(topic, offset).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.inner.doctor().await
    }

    async fn drop_namespace(&self) -> Result<()> {
        self.inner.drop_namespace().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

#[async_trait]
impl Maintenance for Faulty {
    async fn elect(&self, worker: &Owner, term: Duration) -> Result<bool> {
        Ok(self.inner.elect(worker, term).await? || self.fault == Fault::EveryWorkerIsElected)
    }

    async fn resign(&self, worker: &Owner) -> Result<()> {
        self.inner.resign(worker).await
    }

    async fn topics(&self) -> Result<Vec<TopicStatus>> {
        self.inner.topics().await
    }

    async fn advance_heads(&self) -> Result<Maintained> {
        self.inner.advance_heads().await
    }

    async fn detect_dead(&self) -> Result<Detected> {
        let mut found = self.inner.detect_dead().await?;
        if self.fault == Fault::SuspectsDieAtOnce {
            found.died.append(&mut found.suspected);
        }
        Ok(found)
    }

    async fn clean(&self, topic: TopicId, messages_max: u32) -> Result<CleanStep> {
        match self.fault {
            Fault::CleanupNeverRuns => return Ok(CleanStep::default()),
            Fault::DeadStillCount if self.states(topic).await?.contains(&SubscriptionState::Dead) => {
                return Ok(CleanStep::default());
            }
            // As if everything had been read.
            Fault::CleanupTakesUnread => self.skip_all(topic, false).await?,
            Fault::QueueForgetsDeadGroup => self.skip_all(topic, true).await?,
            _ => {}
        }
        let mut step = self.inner.clean(topic, messages_max).await?;
        if self.fault == Fault::MissesOfDeadGroupAreHidden {
            let (_, groups) = self.groups(topic).await?;
            let is_dead = |name: &GroupName| {
                groups.iter().any(|status| status.group == *name && status.state == SubscriptionState::Dead)
            };
            step.missed.retain(|(group, _)| !is_dead(group));
        }
        Ok(step)
    }

    async fn keep_partitions(&self, topic: TopicId) -> Result<PartitionStep> {
        self.inner.keep_partitions(topic).await
    }

    async fn clean_processes(&self, older_than: Duration) -> Result<u64> {
        self.inner.clean_processes(older_than).await
    }

    async fn clean_subscriptions(&self, older_than: Duration) -> Result<SubscriptionStep> {
        if self.fault == Fault::ZombiesStay {
            return Ok(SubscriptionStep::default());
        }
        self.inner.clean_subscriptions(older_than).await
    }

    async fn clean_entries(&self, retention: &EntryRetention) -> Result<EntryStep> {
        self.inner.clean_entries(retention).await
    }

    async fn probe(&self) -> Result<()> {
        self.inner.probe().await
    }

    async fn survey(&self, groups_max: u32) -> Result<Survey> {
        self.inner.survey(groups_max).await
    }

    async fn jobs(&self) -> Result<Vec<JobStatus>> {
        self.inner.jobs().await
    }

    async fn jobs_ran(&self, runs: &[JobRun]) -> Result<()> {
        self.inner.jobs_ran(runs).await
    }
}

#[async_trait]
impl Tracking for Faulty {
    async fn track(&self, topic: TopicId, messages_max: u32) -> Result<TrackStep> {
        self.inner.track(topic, messages_max).await
    }

    async fn records(&self, topic: &TopicName, range: OffsetRange) -> Result<Vec<Record>> {
        let mut records = self.inner.records(topic, range).await?;
        if self.fault == Fault::CompletionIsHidden {
            records.iter_mut().for_each(|record| record.completed.clear());
        }
        Ok(records)
    }

    async fn backfill(
        &self,
        topic: &TopicName,
        group: &GroupName,
        limits: &BackfillLimits,
    ) -> Result<Backfill> {
        self.inner.backfill(topic, group, limits).await
    }

    async fn cancel_backfill(&self, topic: &TopicName, group: &GroupName) -> Result<Backfill> {
        self.inner.cancel_backfill(topic, group).await
    }

    async fn resume_backfill(&self, topic: &TopicName, group: &GroupName) -> Result<Backfill> {
        self.inner.resume_backfill(topic, group).await
    }

    async fn backfills(&self) -> Result<Vec<Backfill>> {
        self.inner.backfills().await
    }

    async fn step_backfill(&self, worker: &Owner, messages_max: u32) -> Result<Option<BackfillStep>> {
        let step = self.inner.step_backfill(worker, messages_max).await?;
        if self.fault != Fault::BackfillRepeatsABatch {
            return Ok(step);
        }
        let mut batch = self.batch.lock().expect("no panic while held");
        Ok(step.inspect(|step| *batch = Some(step.clone())).or_else(|| batch.take()))
    }
}
