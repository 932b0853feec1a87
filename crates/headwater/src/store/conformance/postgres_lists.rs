//! The lists of cases for PostgreSQL only.

/// Makes one test of every case for PostgreSQL only: commits that land out of order, and topics with their own
/// storage.
#[macro_export]
macro_rules! conformance_postgres_cases {
    ($make:path) => {
        $crate::conformance_group!(
            $make,
            postgres_order,
            [
                an_open_transaction_does_not_stall_others,
                within_patience_the_order_is_kept,
                a_rolled_back_transaction_leaves_no_gap,
                a_rolled_back_savepoint_leaves_no_gap,
                a_savepoint_does_not_hide_an_open_publisher,
                a_prepared_transaction_is_delivered_when_it_commits,
                a_prepared_transaction_that_rolls_back_is_never_seen,
                an_early_transaction_id_with_a_late_publish_skips_nothing,
                a_foreign_long_transaction_does_not_stall,
                a_late_message_reaches_every_group_once,
                a_late_message_reaches_an_ordered_group,
                a_late_message_is_found_by_a_waiter,
                out_of_order_commits_never_skip_nor_double,
            ]
        );
        $crate::conformance_group!(
            $make,
            postgres_start,
            [
                now_is_exact_with_an_open_transaction,
                beginning_waits_for_an_open_transaction,
                offset_and_bounded_starts_wait_for_an_open_transaction,
                now_is_exact_at_every_interleaving,
            ]
        );
        $crate::conformance_group!(
            $make,
            postgres_life,
            [
                a_late_message_survives_cleanup,
                a_late_message_survives_cleanup_in_reference_counting,
                a_late_message_gets_its_record,
                a_late_message_below_the_start_is_completed,
                a_group_that_dies_under_open_transactions_misses_nothing,
                now_is_exact_among_cleanups_and_open_transactions,
                a_heartbeat_does_not_wait_for_a_locked_row,
                heartbeats_have_connections_of_their_own,
                dedicated_storage_delivers_across_partitions,
                partitions_are_created_ahead,
                a_burst_past_the_partitions_never_fails,
                partitions_are_dropped_behind,
                a_dropped_partition_counts_what_was_missed,
                a_locked_table_is_left_for_later,
                a_detector_that_waits_and_is_killed_leaves_nothing,
                a_prepared_transaction_left_behind_is_reported,
            ]
        );
    };
}
