//! Proves that the suite can fail: stores that lie in one way each, and the case that must notice.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use headwater::store::conformance::{self, Case, ForeignPlace, Harness};
use headwater::{
    Ack, AuditEntry, Backfill, BackfillLimits, BackfillStep, Beat, ClaimRequest, Claimed, CleanStep,
    DeadLetter, DeadLetterSelection, DeliveryPolicy, Detected, Finding, ForceCompleted, GroupName, JobRun,
    JobStatus, LeaseToken, Lifecycle, Maintained, Message, Moved, NewMessage, Offset, OffsetRange,
    OpenOptions, Outstanding, Owner, PartitionStep, Parts, Published, Pulse, Record, Redriven, Result,
    Resurrected, Settlement, Start, Store, Stuck, Subscription, SubscriptionId, SubscriptionStatus,
    SubscriptionStep, Topic, TopicId, TopicName, TopicSettings, TopicStatus, TrackStep, Transition, Upkeep,
    Wake,
};
use jiff::Timestamp;

use crate::sqlite::SqliteHarness;

/// The one way in which a store lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    FetchLosesOne,
    AckIsSwallowed,
    LostLeaseIsAccepted,
    ExtensionIsSwallowed,
    DedupIsForgotten,
    DelayIsForgotten,
    AttemptIsMiscounted,
    SuspectIsHidden,
    SecondGroupIsStarved,
    BlockedKeyIsHidden,
    PayloadIsChanged,
    SilenceIsIgnored,
    DepartureIsIgnored,
    InFlightIsIgnored,
    RateIsIgnored,
    HolderIsHidden,
}

/// The cases under it fail, or the suite is worth nothing.
fn is_noticed(fault: Fault, case: impl AsyncFnOnce(&Case)) {
    let run = || conformance::run(async || FaultyHarness::make(fault).await, "a lying store", case);
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "{fault:?} was not noticed");
}

macro_rules! noticed {
    ($($test:ident: $fault:ident by $verb:ident::$case:ident;)*) => {
        $(
            #[test]
            fn $test() {
                is_noticed(Fault::$fault, conformance::$verb::$case);
            }
        )*
    };
}

noticed! {
    a_lost_message_is_noticed: FetchLosesOne by random_ops::random_ops_agree_with_the_model;
    a_swallowed_ack_is_noticed: AckIsSwallowed by random_ops::random_ops_agree_with_the_model;
    a_stale_settlement_is_noticed: LostLeaseIsAccepted by random_ops::random_ops_agree_with_the_model;
    a_swallowed_extension_is_noticed: ExtensionIsSwallowed by random_ops::random_ops_agree_with_the_model;
    a_forgotten_dedup_key_is_noticed: DedupIsForgotten by random_ops::random_ops_agree_with_the_model;
    a_forgotten_delay_is_noticed: DelayIsForgotten by random_ops::random_ops_agree_with_the_model;
    a_miscounted_attempt_is_noticed: AttemptIsMiscounted by random_ops::random_ops_agree_with_the_model;
    a_hidden_suspect_is_noticed: SuspectIsHidden by random_ops::random_ops_agree_with_the_model;
    a_changed_payload_is_noticed: PayloadIsChanged by random_ops::random_ops_agree_with_the_model;
    a_starved_group_is_noticed: SecondGroupIsStarved by claim::groups_are_isolated;
    a_stale_token_is_noticed: LostLeaseIsAccepted by settle::stale_token_cannot_settle;
    a_reordered_key_is_noticed: BlockedKeyIsHidden by order::order_per_key_survives_retries_and_crashes;
    an_ignored_silence_is_noticed: SilenceIsIgnored by heartbeat::a_silent_owners_leases_come_back;
    an_ignored_departure_is_noticed: DepartureIsIgnored by heartbeat::an_owner_that_departs_is_forgotten;
    too_many_in_flight_is_noticed: InFlightIsIgnored by limits::in_flight_holds_among_competing_members;
    too_fast_a_rate_is_noticed: RateIsIgnored by limits::the_rate_holds_among_competing_members;
    a_hidden_holder_is_noticed: HolderIsHidden by outstanding::a_lease_shows_its_owner_and_deadline;
    a_blocked_key_is_noticed: BlockedKeyIsHidden by order::a_blocked_key_parks_and_others_go_on;
}

#[derive(Debug)]
struct Faulty {
    inner: Arc<dyn Store>,
    fault: Fault,
}

#[async_trait]
impl Lifecycle for Faulty {
    async fn alter_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic> {
        self.inner.alter_topic(name, settings).await
    }

    async fn shift(&self, topic: &TopicName, group: &GroupName, transition: Transition) -> Result<()> {
        self.inner.shift(topic, group, transition).await
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

    async fn beat(&self, owner: &Owner, beats: &[Beat]) -> Result<Vec<Pulse>> {
        self.inner.beat(owner, beats).await
    }

    async fn seek(&self, topic: &TopicName, group: &GroupName, to: Start, dry_run: bool) -> Result<Moved> {
        self.inner.seek(topic, group, to, dry_run).await
    }

    async fn set_policy(&self, topic: &TopicName, group: &GroupName, policy: &DeliveryPolicy) -> Result<()> {
        self.inner.set_policy(topic, group, policy).await
    }

    async fn policy(&self, topic: &TopicName, group: &GroupName) -> Result<DeliveryPolicy> {
        self.inner.policy(topic, group).await
    }

    async fn release_lease(&self, token: LeaseToken) -> Result<()> {
        self.inner.release_lease(token).await
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
        self.inner.stuck(topic, older_than).await
    }

    async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>> {
        self.inner.audit(limit).await
    }

    async fn acks(&self, topic: &TopicName, offset: Offset) -> Result<Vec<Ack>> {
        self.inner.acks(topic, offset).await
    }

    async fn records(&self, topic: &TopicName, range: OffsetRange) -> Result<Vec<Record>> {
        self.inner.records(topic, range).await
    }
}

#[async_trait]
impl Upkeep for Faulty {
    async fn elect(&self, worker: &Owner, term: Duration) -> Result<bool> {
        self.inner.elect(worker, term).await
    }

    async fn resign(&self, worker: &Owner) -> Result<()> {
        self.inner.resign(worker).await
    }

    async fn detect_dead(&self) -> Result<Detected> {
        self.inner.detect_dead().await
    }

    async fn track(&self, topic: TopicId, messages_max: u32) -> Result<TrackStep> {
        self.inner.track(topic, messages_max).await
    }

    async fn clean(&self, topic: TopicId, messages_max: u32) -> Result<CleanStep> {
        self.inner.clean(topic, messages_max).await
    }

    async fn keep_partitions(&self, topic: TopicId) -> Result<PartitionStep> {
        self.inner.keep_partitions(topic).await
    }

    async fn clean_subscriptions(&self, older_than: Duration) -> Result<SubscriptionStep> {
        self.inner.clean_subscriptions(older_than).await
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
        self.inner.step_backfill(worker, messages_max).await
    }

    async fn probe(&self) -> Result<()> {
        self.inner.probe().await
    }

    async fn jobs(&self) -> Result<Vec<JobStatus>> {
        self.inner.jobs().await
    }

    async fn job_ran(&self, run: &JobRun) -> Result<()> {
        self.inner.job_ran(run).await
    }
}

#[async_trait]
impl Store for Faulty {
    fn engine(&self) -> &'static str {
        self.inner.engine()
    }

    async fn create_topic(&self, name: &TopicName, settings: &TopicSettings) -> Result<Topic> {
        self.inner.create_topic(name, settings).await
    }

    async fn topic(&self, name: &TopicName) -> Result<Topic> {
        self.inner.topic(name).await
    }

    async fn topics(&self) -> Result<Vec<TopicStatus>> {
        self.inner.topics().await
    }

    async fn subscribe(&self, topic: &TopicName, group: &GroupName, start: Start) -> Result<Subscription> {
        self.inner.subscribe(topic, group, start).await
    }

    async fn subscriptions(&self, topic: &TopicName) -> Result<Vec<SubscriptionStatus>> {
        self.inner.subscriptions(topic).await
    }

    async fn outstanding(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<Outstanding>> {
        let mut parts = self.inner.outstanding(subscription, limit).await?;
        if self.fault == Fault::HolderIsHidden {
            parts.iter_mut().for_each(|part| part.owner = None);
        }
        Ok(parts)
    }

    async fn publish(&self, topic: &TopicName, messages: &[NewMessage]) -> Result<Vec<Published>> {
        let mut messages = messages.to_vec();
        for message in &mut messages {
            match self.fault {
                Fault::DedupIsForgotten => message.dedup_key = None,
                Fault::DelayIsForgotten => message.deliver_at = None,
                _ => {}
            }
        }
        self.inner.publish(topic, &messages).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed> {
        let mut request = request.clone();
        for want in &mut request.wants {
            match self.fault {
                Fault::InFlightIsIgnored => want.limits.in_flight_max = None,
                Fault::RateIsIgnored => want.limits.rate = None,
                _ => {}
            }
        }
        let mut claimed = self.inner.claim(&request).await?;
        for lease in &mut claimed.leases {
            match self.fault {
                Fault::AttemptIsMiscounted if lease.attempt > 2 => lease.attempt -= 1,
                Fault::SuspectIsHidden => lease.suspect = false,
                Fault::BlockedKeyIsHidden => lease.blocked_keys.clear(),
                _ => {}
            }
        }
        if self.fault == Fault::SecondGroupIsStarved {
            claimed.leases.retain(|lease| lease.subscription_id.0 == 1);
        }
        Ok(claimed)
    }

    async fn fetch(&self, topic: TopicId, range: OffsetRange) -> Result<Vec<Message>> {
        let mut messages = self.inner.fetch(topic, range).await?;
        match self.fault {
            Fault::FetchLosesOne if range.span() > 3 => drop(messages.pop()),
            Fault::PayloadIsChanged => {
                messages.iter_mut().take(1).for_each(|message| message.payload = "other".into());
            }
            _ => {}
        }
        Ok(messages)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Result<()>>> {
        let swallowed = |settlement: &Settlement| {
            self.fault == Fault::AckIsSwallowed
                && settlement.parts == Parts::AckAll
                && settlement.token.0 % 7 == 3
        };
        let kept: Vec<_> = settlements.iter().filter(|one| !swallowed(one)).cloned().collect();
        let mut answers = self.inner.settle(&kept).await?.into_iter();
        let answer_of =
            |settlement| if swallowed(settlement) { Ok(()) } else { answers.next().expect("one each") };
        let answers = settlements.iter().map(answer_of);
        Ok(answers
            .map(|answer| if self.fault == Fault::LostLeaseIsAccepted { Ok(()) } else { answer })
            .collect())
    }

    async fn extend(&self, tokens: &[LeaseToken], lease: Duration) -> Result<Vec<Result<()>>> {
        if self.fault == Fault::ExtensionIsSwallowed {
            return Ok(tokens.iter().map(|_| Ok(())).collect());
        }
        self.inner.extend(tokens, lease).await
    }

    async fn heartbeat(&self, owner: &Owner, silent_for: Duration) -> Result<u64> {
        if self.fault == Fault::SilenceIsIgnored {
            return Ok(0);
        }
        self.inner.heartbeat(owner, silent_for).await
    }

    async fn depart(&self, owner: &Owner) -> Result<()> {
        if self.fault == Fault::DepartureIsIgnored {
            return Ok(());
        }
        self.inner.depart(owner).await
    }

    async fn arm(&self, topics: &[TopicId]) -> Result<Wake> {
        self.inner.arm(topics).await
    }

    async fn maintain(&self) -> Result<Maintained> {
        self.inner.maintain().await
    }

    async fn dead_letters(&self, selection: &DeadLetterSelection, limit: u32) -> Result<Vec<DeadLetter>> {
        self.inner.dead_letters(selection, limit).await
    }

    async fn redrive(&self, selection: &DeadLetterSelection) -> Result<Redriven> {
        self.inner.redrive(selection).await
    }

    async fn purge(&self, selection: &DeadLetterSelection) -> Result<u64> {
        self.inner.purge(selection).await
    }

    async fn cron_last(&self, job: &str, first: Timestamp) -> Result<Timestamp> {
        self.inner.cron_last(job, first).await
    }

    async fn cron_fire(
        &self,
        job: &str,
        tick: Timestamp,
        topic: &TopicName,
        message: &NewMessage,
    ) -> Result<Option<Published>> {
        self.inner.cron_fire(job, tick, topic, message).await
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

struct FaultyHarness {
    inner: SqliteHarness,
    fault: Fault,
}

impl FaultyHarness {
    async fn make(fault: Fault) -> Option<Self> {
        Some(FaultyHarness { inner: SqliteHarness::make().await?, fault })
    }
}

#[async_trait]
impl Harness for FaultyHarness {
    fn url(&self) -> String {
        self.inner.url()
    }

    fn url_beside(&self, name: &str) -> String {
        self.inner.url_beside(name)
    }

    async fn open_at(&self, url: &str, options: OpenOptions) -> Result<Arc<dyn Store>> {
        let inner = self.inner.open_at(url, options).await?;
        Ok(Arc::new(Faulty { inner, fault: self.fault }))
    }

    async fn publish_in_transaction(
        &self,
        topic: &TopicName,
        messages: &[NewMessage],
        commit: bool,
    ) -> Result<Vec<Published>> {
        self.inner.publish_in_transaction(topic, messages, commit).await
    }

    async fn publish_by_sql(
        &self,
        topic: &TopicName,
        payload: &str,
        key: Option<&str>,
        commit: bool,
    ) -> std::result::Result<(), String> {
        self.inner.publish_by_sql(topic, payload, key, commit).await
    }

    fn worker(&self) -> Option<Command> {
        None
    }

    async fn foreign_places(&self) -> Vec<ForeignPlace> {
        self.inner.foreign_places().await
    }

    async fn fingerprint(&self, place: &ForeignPlace) -> Vec<u8> {
        self.inner.fingerprint(place).await
    }

    fn unreachable_url(&self) -> String {
        self.inner.unreachable_url()
    }

    async fn remove_message(&self, offset: i64) {
        self.inner.remove_message(offset).await;
    }

    async fn damage(&self) {
        self.inner.damage().await;
    }

    async fn sql(&self, sqlite: &str, postgres: &str) -> std::result::Result<u64, String> {
        self.inner.sql(sqlite, postgres).await
    }

    async fn number(&self, sqlite: &str, postgres: &str) -> i64 {
        self.inner.number(sqlite, postgres).await
    }

    async fn cleanup(&self) {
        self.inner.cleanup().await;
    }
}
