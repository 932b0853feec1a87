//! The list of cases about what is built on claims and settlements: handling in the store's transaction, dead
//! letters, ticks of periodic jobs.

/// Makes one test of every case about exactly-once effects, dead letters and ticks. Part of [`conformance_cases`](crate::conformance_cases).
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_reliable_cases {
    ($make:path) => {
        $crate::conformance_group!(
            $make,
            transaction,
            [
                effect_and_ack_commit_together,
                a_failed_handler_leaves_no_effect_and_a_retry,
                a_buried_message_leaves_no_effect,
                a_partial_batch_keeps_what_was_done,
                a_second_delivery_runs_no_effect,
                a_lease_lost_while_handling_leaves_no_effect,
                two_deliveries_at_once_have_one_effect,
                a_caller_that_goes_away_leaves_nothing_open,
                upkeep_forgets_old_entries,
                strange_handler_names_are_harmless,
            ]
        );
        $crate::conformance_group!(
            $make,
            redrive,
            [
                a_redriven_message_comes_again_as_new,
                a_redrive_reaches_its_own_subscription_only,
                redriving_twice_delivers_once,
                a_selection_picks_what_fits_all_of_it,
                a_letter_whose_message_is_gone_stays,
                many_letters_are_redriven_in_steps,
                a_redriven_message_may_be_buried_again,
                a_redriven_message_keeps_the_order_of_its_key,
                redriven_messages_go_to_their_own_lanes,
                a_redrive_wakes_a_waiter,
                a_selection_outside_its_limits_is_refused,
            ]
        );
        $crate::conformance_group!(
            $make,
            cron,
            [
                a_job_begins_where_it_was_first_asked_for,
                a_tick_fires_once_and_older_ones_never,
                a_job_may_begin_with_a_tick,
                of_many_at_once_one_fires,
                a_refused_message_leaves_the_job_where_it_was,
                an_unknown_topic_is_created_by_a_tick,
                a_tick_publishes_as_a_publish_does,
                strange_jobs_and_ticks_are_harmless,
            ]
        );
    };
}
