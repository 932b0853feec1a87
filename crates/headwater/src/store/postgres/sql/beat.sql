-- name: beat
-- Purpose: say that a process serves these subscriptions; one row for each, in their order, with its state (null: unknown).
-- Parameters: owner, subscription ids, messages processed, failed and filtered, rates, mean and 95th percentile of handling
-- in microseconds (each an array), injected time.
-- Index: subscription_pkey, activity_pkey.
SELECT topic_id, state, resurrected, missed, missed_first, missed_last
FROM {schema}.beat($1, $2, $3, $4, $5, $6, $7, $8, $9::timestamptz)
