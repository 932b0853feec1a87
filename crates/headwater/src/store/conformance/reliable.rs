//! The list of cases about what is built on claims and settlements: handling in the store's transaction.

/// Makes one test of every case about exactly-once effects. Part of [`conformance_cases`](crate::conformance_cases).
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
    };
}
