//! Proves that the suite can fail: stores with one fault each, and the case that must notice it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use headwater::consumer::GroupOrder;
use headwater::store::conformance::{self, Case, ForeignDatabase, Harness};
use headwater::store::{
    BackfillStep, Checked, ClaimRequest, Claimed, CronDescription, Delivery, Epoch, FetchBound, Fetched,
    Head, Heartbeat, LeaseId, NewSubscription, OffsetRange, Owner, Parts, Served, Settlement, Signal, Store,
    Subscription, SubscriptionId, TopicId, Wake,
};
use headwater::{
    ErrorKind, GroupName, NewMessage, Offset, OpenOptions, Published, Result, Start, TopicName, TopicSettings,
};
use jiff::Timestamp;

use crate::sqlite::SqliteHarness;

#[path = "faulty_life.rs"]
mod life;

/// The one fault of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    OrderIsForgotten,
    FetchLosesOne,
    FetchIsUnbounded,
    AckIsSwallowed,
    LostLeaseIsAccepted,
    ExtensionIsSwallowed,
    EpochIsFrozen,
    DedupIsForgotten,
    DelayIsForgotten,
    CancelledIsDelivered,
    HeadIsAhead,
    AttemptIsMiscounted,
    SuspectIsHidden,
    SecondGroupIsStarved,
    BlockedKeyIsHidden,
    PayloadIsChanged,
    SilenceIsIgnored,
    DepartureIsIgnored,
    InFlightIsIgnored,
    RateIsIgnored,
    OwnerIsHidden,
    SettingIsForgotten,
    ServedTopicIsDeleted,
    EditedCopyGoesToAll,
    LeasedMessageIsSkipped,
    PurgeRemovesNothing,
    PauseIsIgnored,
    TransitionIsAccepted,
    CancelledStillCounts,
    HeartbeatIsForgotten,
    RestartsAreHidden,
    SuspectsDieAtOnce,
    DeadStillCount,
    ZombiesStay,
    QueueForgetsDeadGroup,
    MissesOfDeadGroupAreHidden,
    CleanupTakesUnread,
    CleanupNeverRuns,
    MissedIsHidden,
    BlockedWriteIsSwallowed,
    AckLogIsEmpty,
    CompletionIsHidden,
    BackfillRepeatsABatch,
    DryRunIsReal,
    PolicyIsForgotten,
    StuckIsHidden,
    AuditForgetsOne,
    PageLosesOne,
    NowIsEarly,
    EveryWorkerIsElected,
}

/// Asserts that a case fails on a store with this fault: otherwise the suite proves nothing.
fn is_noticed(fault: Fault, case: impl AsyncFnOnce(&Case)) {
    let run = || conformance::run(async || FaultyHarness::make(fault).await, "a faulty store", case);
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
    an_unbounded_fetch_is_noticed: FetchIsUnbounded by claim::fetch_reads_as_much_as_fits;
    a_lost_message_is_noticed: FetchLosesOne by random_ops::random_ops_agree_with_the_model;
    a_swallowed_ack_is_noticed: AckIsSwallowed by random_ops::random_ops_agree_with_the_model;
    a_stale_settlement_is_noticed: LostLeaseIsAccepted by random_ops::random_ops_agree_with_the_model;
    an_epoch_that_stands_is_noticed: EpochIsFrozen by epoch::a_lost_history_changes_the_epoch;
    a_swallowed_extension_is_noticed: ExtensionIsSwallowed by random_ops::random_ops_agree_with_the_model;
    a_forgotten_dedup_key_is_noticed: DedupIsForgotten by random_ops::random_ops_agree_with_the_model;
    a_forgotten_delay_is_noticed: DelayIsForgotten by random_ops::random_ops_agree_with_the_model;
    a_delivered_cancelled_message_is_noticed: CancelledIsDelivered by schedule::a_cancelled_message_is_never_delivered;
    a_head_that_is_ahead_is_noticed: HeadIsAhead by head::the_head_follows_publishes_without_a_group;
    a_miscounted_attempt_is_noticed: AttemptIsMiscounted by random_ops::random_ops_agree_with_the_model;
    a_hidden_suspect_is_noticed: SuspectIsHidden by random_ops::random_ops_agree_with_the_model;
    a_changed_payload_is_noticed: PayloadIsChanged by random_ops::random_ops_agree_with_the_model;
    a_starved_group_is_noticed: SecondGroupIsStarved by claim::groups_are_isolated;
    a_stale_token_is_noticed: LostLeaseIsAccepted by settle::stale_token_cannot_settle;
    a_reordered_key_is_noticed: BlockedKeyIsHidden by order::order_per_key_survives_retries_and_crashes;
    an_ignored_silence_is_noticed: SilenceIsIgnored by heartbeat::a_silent_owners_leases_are_reassigned;
    an_ignored_departure_is_noticed: DepartureIsIgnored by heartbeat::an_owner_that_departs_is_forgotten;
    too_many_in_flight_is_noticed: InFlightIsIgnored by limits::in_flight_holds_among_competing_members;
    too_fast_a_rate_is_noticed: RateIsIgnored by limits::the_rate_holds_among_competing_members;
    a_hidden_owner_is_noticed: OwnerIsHidden by outstanding::a_lease_shows_its_owner_and_deadline;
    a_blocked_key_is_noticed: BlockedKeyIsHidden by order::a_blocked_key_parks_and_others_continue;
    a_forgotten_setting_is_noticed: SettingIsForgotten by settings::every_setting_can_be_altered;
    a_deleted_topic_in_use_is_noticed: ServedTopicIsDeleted by removal::a_served_topic_is_removed_only_by_force;
    a_purge_that_removes_nothing_is_noticed: PurgeRemovesNothing by removal::a_purged_topic_keeps_its_groups;
    a_copy_for_all_groups_is_noticed: EditedCopyGoesToAll by redrive::an_edited_copy_replaces_its_dead_letter;
    a_skipped_lease_is_noticed: LeasedMessageIsSkipped by message::a_leased_message_changes_only_by_force;
    an_ignored_pause_is_noticed: PauseIsIgnored by state::a_pause_stops_hand_outs_and_loses_nothing;
    an_accepted_transition_is_noticed: TransitionIsAccepted by state::only_the_allowed_transitions_exist;
    a_counting_cancelled_group_is_noticed: CancelledStillCounts by state::a_cancelled_group_holds_and_counts_for_nothing;
    a_forgotten_heartbeat_is_noticed: HeartbeatIsForgotten by group_heartbeat::a_heartbeat_is_stamped_by_the_databases_clock;
    hidden_restarts_are_noticed: RestartsAreHidden by group_heartbeat::a_group_that_only_restarts_is_flapping;
    a_premature_death_is_noticed: SuspectsDieAtOnce by dead::no_group_dies_at_the_first_detection_after_a_pause;
    a_counting_dead_group_is_noticed: DeadStillCount by dead::dead_groups_do_not_count;
    zombies_that_stay_are_noticed: ZombiesStay by dead::a_zombie_gives_up_only_removed_messages;
    a_queue_that_forgets_a_dead_group_is_noticed: QueueForgetsDeadGroup by keeping::a_queue_keeps_its_messages_without_workers;
    hidden_misses_of_a_dead_group_are_noticed: MissesOfDeadGroupAreHidden by keeping::messages_missed_by_a_dead_group_are_counted_and_logged;
    removed_unread_messages_are_noticed: CleanupTakesUnread by retention::what_a_slow_group_has_not_done_is_never_removed;
    what_is_removed_unread_is_noticed_by_the_model: CleanupTakesUnread by retention_model::random_lives_keep_every_rule_of_retention;
    a_cleanup_that_never_runs_is_noticed: CleanupNeverRuns by retention_model::random_lives_keep_every_rule_of_retention;
    a_hidden_miss_is_noticed: MissedIsHidden by retention::max_retention_removes_unread_messages_and_reports_them;
    a_hidden_miss_is_noticed_by_the_model: MissedIsHidden by retention_model::random_lives_keep_every_rule_of_retention;
    a_swallowed_blocked_write_is_noticed: BlockedWriteIsSwallowed by retention::writes_are_blocked_while_no_group_counts;
    an_empty_ack_log_is_noticed: AckLogIsEmpty by retention::the_ack_log_shows_which_owner_acked_what;
    a_hidden_completion_is_noticed: CompletionIsHidden by tracking::a_record_shows_required_and_completed_groups;
    a_repeated_batch_is_noticed: BackfillRepeatsABatch by backfill::nothing_is_counted_twice;
    a_real_dry_run_is_noticed: DryRunIsReal by seek::a_cursor_is_moved_to_every_kind_of_start;
    a_forgotten_policy_is_noticed: PolicyIsForgotten by seek::a_groups_own_policy_wins;
    hidden_stuck_messages_are_noticed: StuckIsHidden by seek::stuck_messages_are_counted_per_group;
    a_forgetful_audit_is_noticed: AuditForgetsOne by seek::every_change_is_audited_once;
    a_page_that_loses_one_is_noticed: PageLosesOne by listing::groups_of_all_topics_are_found_page_by_page;
    an_early_now_is_noticed: NowIsEarly by start::now_is_exact_whatever_races;
    a_forgotten_order_is_noticed: OrderIsForgotten by subscribe::a_group_has_its_own_order;
    two_elected_workers_are_noticed: EveryWorkerIsElected by maintenance::one_of_many_is_elected;
}

/// A store that keeps all promises but one.
#[derive(Debug)]
struct Faulty {
    inner: Arc<dyn Store>,
    fault: Fault,
    /// The last batch of a backfill, for the store that reports it twice.
    batch: Mutex<Option<BackfillStep>>,
}

#[async_trait]
impl Delivery for Faulty {
    async fn subscribe_with(
        &self,
        topic: &TopicName,
        group: &GroupName,
        new: &NewSubscription,
    ) -> Result<Subscription> {
        let early = self.fault == Fault::NowIsEarly && new.start == Start::Now;
        let start = if early { Start::BeginningBounded(2) } else { new.start };
        let order = if self.fault == Fault::OrderIsForgotten { GroupOrder::AsTopic } else { new.order };
        self.inner.subscribe_with(topic, group, &NewSubscription { start, order, ..*new }).await
    }

    async fn subscription(&self, topic: &TopicName, group: &GroupName) -> Result<Subscription> {
        self.inner.subscription(topic, group).await
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
        match self.inner.publish(topic, &messages).await {
            Err(error)
                if self.fault == Fault::BlockedWriteIsSwallowed
                    && error.kind() == ErrorKind::NoSubscriptions =>
            {
                Ok(Vec::new())
            }
            answer => answer,
        }
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
        if self.fault == Fault::EpochIsFrozen {
            claimed.epoch = Epoch::default();
        }
        if self.fault == Fault::SecondGroupIsStarved {
            claimed.leases.retain(|lease| lease.subscription_id.0 == 1);
        }
        Ok(claimed)
    }

    async fn claimable(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<SubscriptionId>> {
        self.inner.claimable(subscriptions).await
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    async fn head(&self, topic: TopicId) -> Result<Option<Head>> {
        let ahead = i64::from(self.fault == Fault::HeadIsAhead);
        let head = self.inner.head(topic).await?;
        Ok(head.map(|head| Head { offset: Offset(head.offset.0 + ahead), ..head }))
    }

    async fn fetch_within(&self, topic: TopicId, range: OffsetRange, bound: FetchBound) -> Result<Fetched> {
        let bound = if self.fault == Fault::FetchIsUnbounded { FetchBound::NONE } else { bound };
        let mut fetched = self.inner.fetch_within(topic, range, bound).await?;
        match self.fault {
            Fault::FetchLosesOne if range.span() > 3 => drop(fetched.messages.pop()),
            Fault::PayloadIsChanged => {
                fetched.messages.iter_mut().take(1).for_each(|message| message.payload = "other".into());
            }
            _ => {}
        }
        Ok(fetched)
    }

    async fn held_keys(
        &self,
        topic: TopicId,
        lease: &LeaseId,
        from: Offset,
    ) -> Result<Vec<(Offset, String)>> {
        self.inner.held_keys(topic, lease, from).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Result<()>>> {
        let swallowed = |settlement: &Settlement| {
            self.fault == Fault::AckIsSwallowed
                && settlement.parts == Parts::AckAll
                && (settlement.lease.token.0 >> 31) % 7 == 3
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

    async fn extend(&self, leases: &[LeaseId], lease: Duration) -> Result<Vec<Result<()>>> {
        if self.fault == Fault::ExtensionIsSwallowed {
            return Ok(leases.iter().map(|_| Ok(())).collect());
        }
        self.inner.extend(leases, lease).await
    }

    async fn heartbeat(
        &self,
        owner: &Owner,
        silent_for: Option<Duration>,
        served: &[Served],
    ) -> Result<Heartbeat> {
        if self.fault == Fault::HeartbeatIsForgotten {
            return Ok(Heartbeat { ended: 0, signals: vec![Signal::Active; served.len()] });
        }
        let silent_for = silent_for.filter(|_| self.fault != Fault::SilenceIsIgnored);
        self.inner.heartbeat(owner, silent_for, served).await
    }

    async fn depart(&self, owner: &Owner) -> Result<()> {
        if self.fault == Fault::DepartureIsIgnored {
            return Ok(());
        }
        self.inner.depart(owner).await
    }

    async fn take_over(&self, owner: &Owner) -> Result<u64> {
        self.inner.take_over(owner).await
    }

    async fn arm(&self, topics: &[TopicId]) -> Result<Wake> {
        self.inner.arm(topics).await
    }

    async fn settings_of(
        &self,
        subscriptions: &[SubscriptionId],
    ) -> Result<Vec<(SubscriptionId, TopicSettings)>> {
        self.inner.settings_of(subscriptions).await
    }

    async fn cron_last(&self, job: &str, first: Timestamp) -> Result<Timestamp> {
        self.inner.cron_last(job, first).await
    }

    async fn cron_describe(&self, job: &CronDescription) -> Result<()> {
        self.inner.cron_describe(job).await
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
        let faulty = Faulty { inner, fault: self.fault, batch: Mutex::default() };
        Ok(Arc::new(Checked::new(faulty, "a faulty store")))
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

    async fn foreign_databases(&self) -> Vec<ForeignDatabase> {
        self.inner.foreign_databases().await
    }

    async fn fingerprint(&self, place: &ForeignDatabase) -> Vec<u8> {
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

    async fn copy(&self) {
        self.inner.copy().await;
    }

    async fn restore(&self) {
        self.inner.restore().await;
    }

    async fn cleanup(&self) {
        self.inner.cleanup().await;
    }
}
