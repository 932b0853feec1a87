-- name: heartbeat
-- Purpose: say that an owner is alive and serves these subscriptions: one row for each, in their order, with its state (null: unknown). End
-- the leases of owners that fell silent: one row for each that held any.
-- Parameters: owner, for how many ms an owner may be silent (null: it neither judges nor is judged), subscription ids, messages processed,
-- failed and filtered, rates, mean and 95th percentile of handling in microseconds (each an array), injected time.
-- Index: owner_pkey, owner_seen, subscription_pkey, activity_pkey, activity_owner; a scan of the outstanding ranges for each owner that is
-- dead.
SELECT i, topic_id, state, resurrected, missed, missed_first, missed_last, dead_owner, leases, topic_ids
FROM {schema}.heartbeat($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::timestamptz)
