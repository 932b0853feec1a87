//! The conformance suite: what every engine promises, as one list of cases that runs on both.
//!
//! An engine's test binary writes one line, naming a function that makes its [`Harness`]:
//!
//! ```ignore
//! mod sqlite {
//!     headwater::conformance_cases!(crate::SqliteHarness::make);
//! }
//! ```
//!
//! Cases are grouped by verb, in files named after the verb. Their names are claims. Time is a manual clock; what
//! happens in real time is waited for with a deadline. After every case the doctor must report no findings.

pub mod case;
mod effects;
pub mod epoch;
mod harness;
pub mod lane_consumer;
mod life;
mod lives;
mod log_capture;
mod model;
#[cfg(feature = "postgres")]
mod postgres_lists;
mod reliable;
pub mod rng;
#[cfg(feature = "postgres")]
mod sessions;

pub mod availability;
pub mod backfill;
pub mod bridge;
pub mod bury;
pub mod claim;
pub mod claims;
pub mod clock;
pub mod create;
pub mod cron;
pub mod dead;
pub mod dead_letter;
pub mod dedup;
pub mod delay;
pub mod expiry;
pub mod extend;
pub mod group_heartbeat;
pub mod head;
pub mod heartbeat;
pub mod inbox;
pub mod input;
pub mod keeping;
pub mod limits;
pub mod listing;
pub mod maintenance;
pub mod message;
pub mod order;
pub mod outbox;
pub mod outstanding;
pub mod pitfalls;
#[cfg(feature = "postgres")]
pub mod postgres_life;
#[cfg(feature = "postgres")]
pub mod postgres_order;
#[cfg(feature = "postgres")]
pub mod postgres_start;
pub mod processes;
pub mod publish;
pub mod random_ops;
pub mod redrive;
pub mod relay;
pub mod removal;
pub mod restart;
pub mod retention;
pub mod retention_model;
pub mod schedule;
pub mod seek;
pub mod settings;
pub mod settle;
pub mod start;
pub mod state;
pub mod subscribe;
pub mod survey;
pub mod take_over;
pub mod token;
pub mod tracking;
pub mod transaction;
pub mod wake;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

pub use case::{Case, Scene};
pub use harness::{ForeignDatabase, Harness};

/// How long a case may take before it counts as hanging: longer if more seeds than usual are requested.
fn case_max() -> Duration {
    Duration::from_secs(if rng::seeds_requested().is_some() { 3_600 } else { 600 })
}

/// Runs one case in an environment of its own, then runs the doctor, and cleans up. The macros call it.
///
/// `make` returns `None` where the engine's database is not available, after reporting that.
pub fn run<H: Harness>(
    make: impl AsyncFnOnce() -> Option<H>,
    name: &'static str,
    case: impl AsyncFnOnce(&Case),
) {
    log_capture::install();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(Box::pin(async {
        let Some(harness) = make().await else { return };
        let context = Case::new(Box::new(harness));
        let body = Box::pin(async {
            case(&context).await;
            context.close_all().await;
            let store = context.open().await;
            let findings = store.doctor().await.expect("the doctor runs");
            assert_eq!(findings, [], "the doctor reports no findings after {name}");
        });
        let outcome = AssertUnwindSafe(tokio::time::timeout(case_max(), body)).catch_unwind().await;
        context.close_all().await;
        context.harness().cleanup().await;
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(_)) => panic!("{name} hangs: it took more than {:?}", case_max()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }));
}

/// Makes one test of every case that every engine must pass.
#[macro_export]
macro_rules! conformance_cases {
    ($make:path) => {
        $crate::conformance_group!(
            $make,
            publish,
            [
                offsets_rise_in_the_order_published,
                every_field_round_trips,
                an_id_is_made_where_none_is_given,
                payloads_are_kept_byte_for_byte,
                a_batch_with_one_bad_message_writes_nothing,
                a_refused_batch_creates_no_topic,
                an_empty_batch_publishes_nothing,
                the_largest_batch_is_published_whole,
                concurrent_publishers_get_disjoint_rising_offsets,
                a_committed_transaction_of_the_caller_is_delivered,
                a_rolled_back_transaction_of_the_caller_is_never_seen,
                committed_sql_is_delivered,
                rolled_back_sql_is_never_seen,
                the_callers_transaction_keeps_the_rules,
                offsets_are_never_reused,
                every_topic_has_offsets_of_its_own,
            ]
        );
        $crate::conformance_group!(
            $make,
            create,
            [
                topic_settings_round_trip,
                other_settings_are_a_conflict,
                bad_settings_are_refused,
                topics_are_listed_by_name,
                concurrent_creators_get_one_topic,
                concurrent_publishers_create_one_topic,
                concurrent_openers_create_one_namespace,
                namespaces_are_apart,
            ]
        );
        $crate::conformance_group!(
            $make,
            subscribe,
            [
                beginning_reads_everything,
                now_is_exact,
                now_on_an_empty_topic_reads_everything,
                now_is_exact_among_publishers,
                offset_starts_there,
                a_start_beyond_the_end_is_refused,
                a_group_has_its_own_order,
                a_new_group_brings_its_policy,
                timestamp_starts_at_the_first_at_or_after,
                beginning_bounded_limits_how_far_back,
                the_widest_starts_are_harmless,
                subscribing_again_keeps_the_cursor,
                concurrent_subscribers_get_one_subscription,
                a_queue_refuses_a_second_group,
                two_groups_racing_for_a_queue_leave_one,
                subscriptions_are_listed_by_group,
                a_subscription_carries_its_topic,
                an_unknown_topic_cannot_be_subscribed_to,
            ]
        );
        $crate::conformance_group!(
            $make,
            claim,
            [
                claims_go_through_the_log_in_order,
                an_empty_topic_gives_nothing,
                competing_members_never_share,
                groups_are_isolated,
                a_new_group_reads_history,
                one_claim_serves_many_subscriptions,
                one_claim_serves_groups_in_every_state,
                a_want_chooses_its_lease,
                claiming_for_an_unknown_subscription_hands_out_nothing,
                a_claim_outside_its_limits_is_refused,
                fetch_reads_stored_messages,
                fetch_reads_as_much_as_fits,
                the_widest_ranges_stay_in_their_topic,
                a_subscription_wanted_twice_shares_nothing,
                a_large_range_is_one_lease,
                status_follows_every_step,
                a_lease_out_does_not_hold_up_new_messages,
            ]
        );
        $crate::conformance_group!(
            $make,
            settle,
            [
                ack_all_finishes_a_lease,
                a_token_settles_once,
                stale_token_cannot_settle,
                a_lease_past_its_deadline_cannot_be_settled,
                a_token_ends_no_lease_of_another_owner_or_subscription,
                an_unknown_token_changes_nothing,
                partial_settle_keeps_the_rest_under_its_token,
                only_the_unsettled_rest_of_a_lease_expires,
                offsets_not_held_are_lost_and_other_settlements_go_through,
                a_lease_may_be_settled_in_pieces_in_one_call,
                malformed_settlements_are_refused,
                no_settlements_are_no_answers,
                every_outcome_fits_in_one_settlement,
                a_retry_is_due_to_the_millisecond,
                retries_count_attempts,
                several_due_retries_are_handed_out_in_one_claim,
                a_due_range_is_split_to_what_is_wanted,
                a_release_is_immediate_and_counts_no_attempt,
                keys_are_read_of_what_a_lease_holds,
            ]
        );
        $crate::conformance_group!(
            $make,
            bury,
            [
                a_buried_message_is_kept_whole,
                a_buried_message_shows_its_attempts,
                an_overlong_error_is_cut_with_a_mark,
                dead_letters_belong_to_one_subscription,
                dead_letters_are_listed_oldest_first,
                a_refused_burial_stores_nothing,
            ]
        );
        $crate::conformance_group!(
            $make,
            epoch,
            [
                a_lost_history_changes_the_epoch,
                a_token_of_a_lost_history_ends_no_lease,
                running_consumers_handle_what_the_new_history_holds,
            ]
        );
        $crate::conformance_group!(
            $make,
            extend,
            [
                extend_moves_the_deadline,
                extend_may_shorten,
                stale_token_cannot_extend,
                a_lease_past_its_deadline_cannot_be_extended,
                tokens_are_extended_each_for_itself,
                extending_by_zero_is_for_ever,
                extend_reaches_every_range_of_a_split_lease,
            ]
        );
        $crate::conformance_group!(
            $make,
            expiry,
            [
                an_expired_lease_goes_to_another_owner,
                an_expired_lease_is_logged,
                a_lease_of_zero_is_never_reassigned,
                an_expired_range_is_redelivered_in_halves,
                a_suspect_is_handed_out_alone,
                a_suspect_affects_only_its_own_subscription,
                a_released_suspect_stays_suspect,
                a_clock_that_jumps_back_loses_nothing,
                a_message_that_kills_its_worker_is_buried,
                bisect_finds_the_poison_in_five_hundred,
                bisect_works_with_three_attempts,
                bisect_works_with_one_attempt,
                bisect_finds_several_poisons,
            ]
        );
        $crate::conformance_group!(
            $make,
            heartbeat,
            [
                a_silent_owners_leases_are_reassigned,
                an_owner_with_heartbeats_keeps_its_leases,
                an_owner_without_heartbeats_is_never_swept,
                a_swept_token_can_neither_settle_nor_extend,
                a_lease_without_a_deadline_ends_with_a_dead_owner,
                a_dead_owner_loses_every_subscription,
                a_partly_settled_lease_ends_whole,
                a_dead_owners_lane_is_free,
                a_sweep_wakes_a_waiter,
                a_sweep_of_another_store_wakes_a_waiter,
                an_owner_that_departs_is_forgotten,
                a_paused_owner_loses_its_leases_and_continues,
                many_owners_send_heartbeats_at_once,
                a_dead_owner_is_logged,
                bad_silences_are_refused,
            ]
        );
        $crate::conformance_group!(
            $make,
            take_over,
            [
                a_closed_owners_leases_end_at_once,
                a_silent_live_owner_keeps_its_leases_until_the_silence_limit,
                an_owner_whose_connections_were_cut_keeps_its_leases,
                an_owner_without_heartbeats_is_not_taken_over,
                every_ended_owner_of_many_is_found,
                a_killed_process_is_taken_over,
                a_stopped_process_is_not_taken_over,
            ]
        );
        $crate::conformance_group!(
            $make,
            order,
            [
                lanes_have_one_owner_each,
                a_lane_continues_with_its_next_owner,
                a_blocked_key_parks_and_others_continue,
                a_retry_is_not_blocked_by_its_followers,
                a_key_that_fails_again_keeps_its_order,
                burying_unblocks_the_key,
                a_lane_is_reassigned_when_its_owner_disappears,
                messages_without_a_key_are_delivered_once,
                a_lane_limits_its_parked_messages,
                order_per_key_survives_retries_and_crashes,
                released_messages_keep_their_order,
            ]
        );
        $crate::conformance_group!(
            $make,
            outstanding,
            [
                a_lease_shows_its_owner_and_deadline,
                a_retry_shows_attempts_error_and_time,
                a_parked_message_shows_its_key,
                an_expired_lease_waits_and_shows_its_owner,
                a_released_range_has_no_owner,
                the_oldest_due_is_listed_first,
            ]
        );
        $crate::conformance_group!(
            $make,
            limits,
            [
                no_more_than_the_limit_is_in_flight,
                what_is_in_flight_counts_redeliveries,
                what_a_dead_owner_held_is_not_in_flight,
                in_flight_holds_among_competing_members,
                a_group_at_its_limit_and_done_is_not_polled,
                in_flight_counts_a_lanes_share,
                in_flight_counts_each_key_of_a_lane,
                a_burst_is_handed_out_then_the_rate_applies,
                redeliveries_use_up_the_rate,
                the_rate_holds_among_competing_members,
                the_rate_survives_a_restart,
                a_clock_that_jumps_back_neither_floods_nor_stops_the_rate,
                the_rate_counts_a_lanes_share,
                both_limits_hold_together,
                limits_are_a_groups_own,
                limits_outside_their_rules_are_refused,
            ]
        );
        $crate::conformance_group!(
            $make,
            delay,
            [
                a_delayed_message_is_delivered_at_its_time_and_once,
                delayed_messages_are_delivered_in_order,
                a_time_in_the_past_is_no_delay,
                a_flood_of_due_messages_is_delivered,
                maintenance_promotes_what_is_due,
                a_delayed_message_survives_a_restart,
                a_delay_works_in_the_callers_transaction,
                recheck_after_is_the_nearest_time,
            ]
        );
        $crate::conformance_group!(
            $make,
            dedup,
            [
                a_repeat_returns_the_first_offset,
                a_repeat_within_a_batch_is_a_duplicate,
                a_batch_may_mix_old_and_new,
                the_window_counts_from_the_first,
                a_shorter_dedup_window_keeps_known_keys,
                maintenance_forgets_old_keys,
                keys_belong_to_their_topic,
                keys_hold_across_transactions,
                keys_survive_a_restart,
                concurrent_repeats_make_one_message,
                batches_in_opposite_orders_do_not_deadlock,
                a_repeat_of_a_delayed_message_is_a_duplicate,
            ]
        );
        $crate::conformance_group!(
            $make,
            wake,
            [
                a_publish_wakes_a_waiter,
                a_publish_wakes_a_waiter_at_rest,
                a_publish_of_another_store_wakes_a_waiter,
                a_transaction_of_the_caller_wakes_a_waiter,
                plain_sql_wakes_a_waiter,
                an_earlier_publish_is_found_by_the_claim_after_arming,
                each_group_has_its_own_wake_up,
                a_waiter_may_wait_for_several_topics,
                a_release_wakes_a_waiter,
                no_wake_up_is_missed,
                an_idle_waiter_sleeps,
            ]
        );
        $crate::conformance_group!(
            $make,
            input,
            [
                bad_names_are_refused_by_name,
                bad_fields_of_a_message_are_refused_by_name,
                a_payload_over_the_topics_limit_is_refused,
                a_payload_over_the_hard_limit_is_refused,
                plain_sql_keeps_the_rules,
                times_beyond_the_limit_are_refused,
                bounds_hold_on_every_engine,
                an_unknown_topic_is_created_by_publishing,
                subscribing_creates_an_unknown_topic_with_auto_create,
                an_unknown_topic_is_refused_without_auto_create,
                names_that_try_to_inject_are_harmless,
                fields_that_try_to_inject_are_harmless,
                strange_keys_are_blocked_exactly,
                owner_names_are_compared_exactly,
            ]
        );
        $crate::conformance_group!(
            $make,
            availability,
            [
                a_foreign_database_is_refused_and_not_touched,
                an_unreachable_database_is_unavailable,
                a_read_only_store_acknowledges_nothing,
                a_full_store_acknowledges_nothing_more,
                a_locked_store_is_busy_and_then_resumes,
                service_resumes_after_connections_were_cut,
                a_bad_namespace_is_refused,
                the_doctor_finds_nothing_in_a_used_store,
                the_doctor_finds_damage,
            ]
        );
        $crate::conformance_reliable_cases!($make);
        $crate::conformance_life_cases!($make);
        $crate::conformance_group!($make, random_ops, [random_ops_agree_with_the_model]);
    };
}

/// The tests of one verb. Only the case lists use it.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_group {
    ($make:path, $verb:ident, [$($case:ident),* $(,)?]) => {
        mod $verb {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::store::conformance::run(
                        $make,
                        concat!(stringify!($verb), "::", stringify!($case)),
                        $crate::store::conformance::$verb::$case,
                    );
                }
            )*
        }
    };
}

#[cfg(test)]
mod listed;
