//! The boundary above the engines: input is checked, bounded and refused here, in one module and with the same texts
//! for every engine. An engine gets valid input only.
//!
//! Rules that depend on stored state (a topic's payload limit, the state of a subscription) are checked by the engine,
//! in the transaction that reads it. So are publishes in plain SQL, which never come here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use super::actor::acting;
use super::*;
use crate::error::{Error, ErrorKind};
use crate::limits::{DELAY_MAX, MAINTENANCE_MESSAGES_MAX, REASON_BYTES_MAX, RETENTION_MAX};
use crate::message::{NewMessage, Offset, Published, validate_batch};
use crate::name::{GroupName, Owner, TopicName, check_name};
use crate::subscription::{DeliveryPolicy, NewSubscription, Start};
use crate::topic::{Removal, TopicContents, TopicSettings};

/// An engine behind the checks: what [`open`] returns, and what everything above the engines uses.
///
/// After [`Admin::close`] or [`Admin::drop_namespace`] was called every verb is `Closed`. A call that was under way
/// then is answered by its engine, which refuses it when it takes a connection.
#[derive(Debug)]
pub struct Checked<E> {
    engine: Arc<E>,
    /// The name of the store, for error texts.
    name: Arc<str>,
    closed: Arc<AtomicBool>,
    /// The actor of changes, if it is not the engine's own.
    caller: Option<Arc<str>>,
}

impl<E: Store> Checked<E> {
    /// Puts the checks before an engine. Errors of a closed store contain `name`.
    pub fn new(engine: E, name: impl Into<String>) -> Self {
        Checked { engine: Arc::new(engine), name: name.into().into(), closed: Arc::default(), caller: None }
    }

    /// The same store for another actor of changes.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn acting_as(&self, actor: &str) -> Self {
        let (engine, name, closed) =
            (Arc::clone(&self.engine), Arc::clone(&self.name), Arc::clone(&self.closed));
        Checked { engine, name, closed, caller: Some(actor.into()) }
    }

    /// The engine itself.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn engine_ref(&self) -> &E {
        &self.engine
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed() {
            return Err(Error::new(ErrorKind::Closed, format!("store closed: {}", self.name)));
        }
        Ok(())
    }
}

/// Implements a trait: each verb with its checks, then the engine's result.
macro_rules! checked {
    ($trait:ident { $($own:tt)* } $(fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty { $($check:tt)* })*) => {
        #[async_trait]
        impl<E: Store> $trait for Checked<E> {
            $($own)*
            $(async fn $name(&self, $($arg: $type),*) -> Result<$out> {
                self.check_open()?;
                $($check)*
                acting(self.caller.as_ref(), self.engine.$name($($arg),*)).await
            })*
        }
    };
}

checked! {
    Delivery {
        async fn publish(&self, topic: &TopicName, messages: &[NewMessage]) -> Result<Vec<Published>> {
            self.check_open()?;
            validate_batch(messages)?;
            if messages.is_empty() {
                return Ok(Vec::new());
            }
            self.engine.publish(topic, messages).await
        }

        async fn subscribe_with(
            &self,
            topic: &TopicName,
            group: &GroupName,
            new: &NewSubscription,
        ) -> Result<Subscription> {
            self.check_open()?;
            new.validate()?;
            let subscription = acting(self.caller.as_ref(), self.engine.subscribe_with(topic, group, new)).await?;
            if let Some(missed) = subscription.resurrected {
                log_resurrection(topic, group, missed);
            }
            Ok(subscription)
        }

        fn now(&self) -> Timestamp {
            self.engine.now()
        }

        /// Each settlement is independent: an invalid one is refused, and the others are settled.
        async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Result<()>>> {
            self.check_open()?;
            if settlements.iter().all(|settlement| settlement.check().is_ok()) {
                return self.engine.settle(settlements).await;
            }
            let mut answers = Vec::with_capacity(settlements.len());
            let mut sound = Vec::with_capacity(settlements.len());
            for settlement in settlements {
                answers.push(settlement.clone().normalized().map(|settlement| sound.push(settlement)));
            }
            let settled = if sound.is_empty() { Vec::new() } else { self.engine.settle(&sound).await? };
            let accepted = answers.iter_mut().filter(|answer| answer.is_ok());
            accepted.zip(settled).for_each(|(slot, answer)| *slot = answer);
            Ok(answers)
        }
    }
    fn subscription(topic: &TopicName, group: &GroupName) -> Subscription {}
    fn claim(request: &ClaimRequest) -> Claimed { request.validate()?; }
    fn claimable(subscriptions: &[SubscriptionId]) -> Vec<SubscriptionId> {}
    fn fetch_within(topic: TopicId, range: OffsetRange, bound: FetchBound) -> Fetched {}
    fn held_keys(topic: TopicId, lease: &LeaseId, from: Offset) -> Vec<(Offset, String)> {}
    fn head(topic: TopicId) -> Option<Head> {}
    fn extend(leases: &[LeaseId], lease: Duration) -> Vec<Result<()>> { at_most_a_year("lease", lease)?; }
    fn heartbeat(owner: &Owner, silent_for: Option<Duration>, served: &[Served]) -> Heartbeat {
        silent_for.map_or(Ok(()), |silent_for| positive("silent_for", silent_for))?;
    }
    fn depart(owner: &Owner) -> () {}
    fn take_over(owner: &Owner) -> u64 {}
    fn arm(topics: &[TopicId]) -> Wake {
        if topics.is_empty() {
            return Err(Error::invalid("topics", "a waiter waits for at least one"));
        }
    }
    fn settings_of(subscriptions: &[SubscriptionId]) -> Vec<(SubscriptionId, TopicSettings)> {}
    fn cron_last(job: &str, first: Timestamp) -> Timestamp { check_name("job", job)?; }
    fn cron_describe(job: &CronDescription) -> () {
        check_name("job", &job.job)?;
        check_name("expression", &job.expression)?;
        check_name("time_zone", &job.time_zone)?;
    }
    fn cron_fire(job: &str, tick: Timestamp, topic: &TopicName, message: &NewMessage) -> Option<Published> {
        check_name("job", job)?;
        message.validate()?;
        if message.delay.is_some() {
            return Err(Error::invalid("delay", "a tick is delivered when it is fired; set deliver_at for a later time"));
        }
    }
}

checked! {
    Admin {
        fn engine(&self) -> &'static str {
            self.engine.engine()
        }

        async fn pause(&self, topic: &TopicName, group: &GroupName, reason: Option<&str>) -> Result<()> {
            self.check_open()?;
            reason.map_or(Ok(()), check_reason)?;
            acting(self.caller.as_ref(), self.engine.pause(topic, group, reason)).await?;
            tracing::info!(topic = topic.as_str(), group = group.as_str(), reason, "subscription paused");
            Ok(())
        }

        async fn resume(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
            self.check_open()?;
            acting(self.caller.as_ref(), self.engine.resume(topic, group)).await?;
            tracing::info!(topic = topic.as_str(), group = group.as_str(), "subscription resumed");
            Ok(())
        }

        async fn cancel(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
            self.check_open()?;
            acting(self.caller.as_ref(), self.engine.cancel(topic, group)).await?;
            tracing::info!(topic = topic.as_str(), group = group.as_str(), "subscription cancelled");
            Ok(())
        }

        async fn resurrect(&self, topic: &TopicName, group: &GroupName, behind_max: Option<u64>) -> Result<Resurrected> {
            self.check_open()?;
            let done = acting(self.caller.as_ref(), self.engine.resurrect(topic, group, behind_max)).await?;
            if done.resurrected {
                log_resurrection(topic, group, done.missed.count);
            }
            Ok(done)
        }

        async fn drop_namespace(&self) -> Result<()> {
            self.check_open()?;
            self.engine.drop_namespace().await?;
            self.closed.store(true, Ordering::SeqCst);
            Ok(())
        }

        async fn close(&self) -> Result<()> {
            self.closed.store(true, Ordering::SeqCst);
            self.engine.close().await
        }

        fn is_closed(&self) -> bool {
            self.closed.load(Ordering::SeqCst)
        }

        fn caller(&self) -> Option<&Arc<str>> {
            self.caller.as_ref()
        }
    }
    fn create_topic(name: &TopicName, settings: &TopicSettings) -> Topic { settings.validate()?; }
    fn alter_topic(name: &TopicName, settings: &TopicSettings) -> Topic { settings.validate()?; }
    fn delete_topic(topic: &TopicName, removal: Removal) -> TopicContents {}
    fn purge_topic(topic: &TopicName, removal: Removal) -> TopicContents {}
    fn set_auto_create(auto_create: bool) -> () {}
    fn topic(name: &TopicName) -> Topic {}
    fn subscriptions(topic: &TopicName) -> Vec<SubscriptionStatus> {}
    fn outstanding(subscription: SubscriptionId, limit: u32) -> Vec<Outstanding> {}
    fn remove(topic: &TopicName, group: &GroupName) -> () {}
    fn seek(topic: &TopicName, group: &GroupName, to: Start, dry_run: bool) -> Moved {}
    fn set_policy(topic: &TopicName, group: &GroupName, policy: &DeliveryPolicy) -> () {}
    fn policy(topic: &TopicName, group: &GroupName) -> DeliveryPolicy {}
    fn release_lease(token: LeaseToken) -> () {}
    fn message_states(topic: &TopicName, offset: Offset) -> Vec<(GroupName, MessageState)> {}
    fn act_on_message(topic: &TopicName, group: &GroupName, offset: Offset, act: &MessageAct, force: bool) -> () {
        act.validate()?;
    }
    fn force_complete(topic: &TopicName, older_than: Duration, dry_run: bool) -> Vec<ForceCompleted> {
        check_age(older_than)?;
    }
    fn stuck(topic: &TopicName, older_than: Duration) -> Vec<Stuck> { check_age(older_than)?; }
    fn dead_letters(selection: &DeadLetterSelection, limit: u32) -> Vec<DeadLetter> { selection.validate()?; }
    fn count_dead_letters(selection: &DeadLetterSelection) -> Redriven { selection.validate()?; }
    fn replace_dead_letter(
        subscription: SubscriptionId,
        id: uuid::Uuid,
        message: &NewMessage,
        all_groups: bool
    ) -> Published {
        message.validate()?;
        if message.deliver_at.is_some() || message.dedup_key.is_some() {
            return Err(Error::invalid("copy", "an edited copy has no delivery time and no dedup key"));
        }
    }
    fn redrive(selection: &DeadLetterSelection) -> Redriven { selection.validate()?; }
    fn purge(selection: &DeadLetterSelection) -> u64 { selection.validate()?; }
    fn scheduled_after(topic: &TopicName, after: Option<ScheduledPlace>, limit: u32) -> Vec<Scheduled> {}
    fn cancel_scheduled(topic: &TopicName, message_id: Uuid) -> bool {}
    fn reschedule(topic: &TopicName, message_id: Uuid, to: Reschedule) -> bool {
        if let Reschedule::After(delay) = to {
            at_most_a_year("delay", delay)?;
        }
    }
    fn cron_jobs() -> Vec<CronStatus> {}
    fn audit_before(audit_id: i64, limit: u32) -> Vec<AuditEntry> {}
    fn note(act: &str, topic: Option<&str>, group: Option<&str>, detail: &serde_json::Value) -> () {
        check_name("act", act)?;
        topic.map_or(Ok(()), |topic| check_name("topic", topic))?;
        group.map_or(Ok(()), |group| check_name("group", group))?;
        if !detail.is_object() || detail.to_string().contains("\\u0000") {
            return Err(Error::invalid("detail", "must be a JSON object without NUL"));
        }
    }
    fn find_topics(selection: &TopicSelection, limit: u32) -> Vec<TopicStatus> { selection.validate()?; }
    fn find_subscriptions(selection: &GroupSelection, limit: u32) -> (Timestamp, Vec<SurveyedGroup>) {
        selection.validate()?;
    }
    fn acks(topic: &TopicName, offset: Offset) -> Vec<Ack> {}
    fn doctor() -> Vec<Finding> {}
}

checked! {
    Maintenance {}
    fn elect(worker: &Owner, term: Duration) -> bool { positive("term", term)?; }
    fn resign(worker: &Owner) -> () {}
    fn topics() -> Vec<TopicStatus> {}
    fn advance_heads() -> Maintained {}
    fn detect_dead() -> Detected {}
    fn clean(topic: TopicId, messages_max: u32) -> CleanStep { let messages_max = bounded(messages_max)?; }
    fn keep_partitions(topic: TopicId) -> PartitionStep {}
    fn clean_subscriptions(older_than: Duration) -> SubscriptionStep { check_age(older_than)?; }
    fn clean_entries(retention: &EntryRetention) -> EntryStep {
        check_age(retention.inbox)?;
        check_age(retention.outbox)?;
    }
    fn clean_processes(older_than: Duration) -> u64 { check_age(older_than)?; }
    fn probe() -> () {}
    fn survey(groups_max: u32) -> Survey {}
    fn jobs() -> Vec<JobStatus> {}
    fn jobs_ran(runs: &[JobRun]) -> () {}
}

checked! {
    Tracking {
        async fn step_backfill(&self, worker: &Owner, messages_max: u32) -> Result<Option<BackfillStep>> {
            self.check_open()?;
            let step = self.engine.step_backfill(worker, bounded(messages_max)?).await?;
            if let Some(BackfillStep { backfill: Backfill { topic, group, error: Some(error), .. }, .. }) = &step {
                tracing::error!(%topic, %group, error, "backfill failed");
            }
            Ok(step)
        }
    }
    fn track(topic: TopicId, messages_max: u32) -> TrackStep { let messages_max = bounded(messages_max)?; }
    fn records(topic: &TopicName, range: OffsetRange) -> Vec<Record> {}
    fn backfill(topic: &TopicName, group: &GroupName, limits: &BackfillLimits) -> Backfill {
        if limits.messages_max == 0 {
            return Err(Error::invalid("backfill messages_max", "must be above zero"));
        }
        limits.validate()?;
    }
    fn cancel_backfill(topic: &TopicName, group: &GroupName) -> Backfill {}
    fn resume_backfill(topic: &TopicName, group: &GroupName) -> Backfill {}
    fn backfills() -> Vec<Backfill> {}
}

fn log_resurrection(topic: &TopicName, group: &GroupName, missed: u64) {
    tracing::info!(topic = topic.as_str(), group = group.as_str(), missed, "dead subscription resurrected");
}

/// How many messages a maintenance step changes: as requested, but no more than one transaction should.
fn bounded(messages_max: u32) -> Result<u32> {
    if messages_max == 0 {
        return Err(Error::invalid("messages_max", "must be above zero"));
    }
    Ok(messages_max.min(MAINTENANCE_MESSAGES_MAX))
}

/// A reason is shown to operators, in lists and in the audit.
fn check_reason(reason: &str) -> Result<()> {
    let rule = if reason.trim().is_empty() {
        "must not be empty; leave it out, or give one".to_owned()
    } else if reason.len() > REASON_BYTES_MAX {
        format!("{} bytes, at most {REASON_BYTES_MAX} are allowed; shorten it", reason.len())
    } else if reason.contains('\0') {
        "contains NUL, which text in PostgreSQL cannot; remove it".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::invalid("reason", rule))
}

fn at_most_a_year(field: &str, duration: Duration) -> Result<()> {
    if duration > DELAY_MAX {
        return Err(Error::invalid(field, "longer than 366 days"));
    }
    Ok(())
}

fn positive(field: &str, duration: Duration) -> Result<()> {
    if duration.is_zero() {
        return Err(Error::invalid(field, "must be above zero"));
    }
    at_most_a_year(field, duration)
}

/// No message is older: timestamps must stay in range.
fn check_age(older_than: Duration) -> Result<()> {
    if older_than > RETENTION_MAX {
        return Err(Error::invalid("older_than", "longer than 100 years"));
    }
    Ok(())
}
