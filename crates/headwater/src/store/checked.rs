//! The boundary above the engines: input is checked, bounded and refused here, in one module and with the same texts
//! for every engine. An engine gets valid input only.
//!
//! Rules that depend on stored state (a topic's payload limit, the state of a subscription) are checked by the engine,
//! in the transaction that reads it. So are publishes in plain SQL, which never come here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::*;
use crate::error::{Error, ErrorKind};
use crate::limits::{DELAY_MAX, MAINTENANCE_MESSAGES_MAX, RETENTION_MAX};
use crate::message::{NewMessage, Offset, Published, validate_batch};
use crate::name::{GroupName, Owner, TopicName, check_name};
use crate::subscription::{DeliveryPolicy, Start};
use crate::topic::TopicSettings;

/// An engine behind the checks: what [`open`] returns, and what everything above the engines uses.
///
/// After [`Admin::close`] or [`Admin::drop_namespace`] was called every verb is `Closed`. A call that was under way
/// then is answered by its engine, which refuses it when it takes a connection.
#[derive(Debug)]
pub struct Checked<E> {
    engine: E,
    /// The name of the store, for error texts.
    name: String,
    closed: AtomicBool,
}

impl<E: Store> Checked<E> {
    /// Puts the checks before an engine. Errors of a closed store contain `name`.
    pub fn new(engine: E, name: impl Into<String>) -> Self {
        Checked { engine, name: name.into(), closed: AtomicBool::new(false) }
    }

    /// The engine itself.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn engine_ref(&self) -> &E {
        &self.engine
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
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
                self.engine.$name($($arg),*).await
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
    fn subscribe(topic: &TopicName, group: &GroupName, start: Start) -> Subscription {}
    fn claim(request: &ClaimRequest) -> Claimed { request.validate()?; }
    fn claimable(subscriptions: &[SubscriptionId]) -> Vec<SubscriptionId> {}
    fn fetch_within(topic: TopicId, range: OffsetRange, bound: FetchBound) -> Fetched {}
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
    fn cron_fire(job: &str, tick: Timestamp, topic: &TopicName, message: &NewMessage) -> Option<Published> {
        check_name("job", job)?;
        message.validate()?;
    }
}

checked! {
    Admin {
        fn engine(&self) -> &'static str {
            self.engine.engine()
        }

        async fn pause(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
            self.check_open()?;
            self.engine.pause(topic, group).await?;
            tracing::info!(topic = topic.as_str(), group = group.as_str(), "subscription paused");
            Ok(())
        }

        async fn resume(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
            self.check_open()?;
            self.engine.resume(topic, group).await?;
            tracing::info!(topic = topic.as_str(), group = group.as_str(), "subscription resumed");
            Ok(())
        }

        async fn cancel(&self, topic: &TopicName, group: &GroupName) -> Result<()> {
            self.check_open()?;
            self.engine.cancel(topic, group).await?;
            tracing::info!(topic = topic.as_str(), group = group.as_str(), "subscription cancelled");
            Ok(())
        }

        async fn resurrect(&self, topic: &TopicName, group: &GroupName, behind_max: Option<u64>) -> Result<Resurrected> {
            self.check_open()?;
            let done = self.engine.resurrect(topic, group, behind_max).await?;
            if done.resurrected {
                let missed = done.missed.count;
                tracing::info!(topic = topic.as_str(), group = group.as_str(), missed, "dead subscription resurrected");
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
    }
    fn create_topic(name: &TopicName, settings: &TopicSettings) -> Topic { settings.validate()?; }
    fn alter_topic(name: &TopicName, settings: &TopicSettings) -> Topic { settings.validate()?; }
    fn set_auto_create(auto_create: bool) -> () {}
    fn topic(name: &TopicName) -> Topic {}
    fn subscriptions(topic: &TopicName) -> Vec<SubscriptionStatus> {}
    fn outstanding(subscription: SubscriptionId, limit: u32) -> Vec<Outstanding> {}
    fn remove(topic: &TopicName, group: &GroupName) -> () {}
    fn seek(topic: &TopicName, group: &GroupName, to: Start, dry_run: bool) -> Moved {}
    fn set_policy(topic: &TopicName, group: &GroupName, policy: &DeliveryPolicy) -> () {}
    fn policy(topic: &TopicName, group: &GroupName) -> DeliveryPolicy {}
    fn release_lease(token: LeaseToken) -> () {}
    fn force_complete(topic: &TopicName, older_than: Duration, dry_run: bool) -> Vec<ForceCompleted> {
        check_age(older_than)?;
    }
    fn stuck(topic: &TopicName, older_than: Duration) -> Vec<Stuck> { check_age(older_than)?; }
    fn dead_letters(selection: &DeadLetterSelection, limit: u32) -> Vec<DeadLetter> { selection.validate()?; }
    fn redrive(selection: &DeadLetterSelection) -> Redriven { selection.validate()?; }
    fn purge(selection: &DeadLetterSelection) -> u64 { selection.validate()?; }
    fn audit(limit: u32) -> Vec<AuditEntry> {}
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
    fn probe() -> () {}
    fn jobs() -> Vec<JobStatus> {}
    fn job_ran(run: &JobRun) -> () {}
}

checked! {
    Tracking {}
    fn track(topic: TopicId, messages_max: u32) -> TrackStep { let messages_max = bounded(messages_max)?; }
    fn records(topic: &TopicName, range: OffsetRange) -> Vec<Record> {}
    fn backfill(topic: &TopicName, group: &GroupName, limits: &BackfillLimits) -> Backfill {
        if limits.messages_max == 0 || limits.rate_max == 0 {
            return Err(Error::invalid("backfill limits", "messages_max and rate_max must be above zero"));
        }
    }
    fn cancel_backfill(topic: &TopicName, group: &GroupName) -> Backfill {}
    fn resume_backfill(topic: &TopicName, group: &GroupName) -> Backfill {}
    fn backfills() -> Vec<Backfill> {}
    fn step_backfill(worker: &Owner, messages_max: u32) -> Option<BackfillStep> {
        let messages_max = bounded(messages_max)?;
    }
}

/// How many messages a maintenance step changes: as requested, but no more than one transaction should.
fn bounded(messages_max: u32) -> Result<u32> {
    if messages_max == 0 {
        return Err(Error::invalid("messages_max", "must be above zero"));
    }
    Ok(messages_max.min(MAINTENANCE_MESSAGES_MAX))
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
