-- name: backfill_fail
-- Purpose: note why a worker's backfill stopped.
-- Parameters: subscription, worker, error.
-- Index: backfill_pkey.
SELECT {schema}.fail_backfill($1, $2, $3)

-- name: backfill_list
-- Purpose: how far backfills are, newest first.
-- Parameters: a subscription, or null for all.
-- Index: backfill_pkey.
SELECT topic, group_name, state, first_offset, last_offset, checkpoint, created_at, progressed_at, ran_ms, rate_max, error
FROM {schema}.backfills($1)

-- name: backfill_start
-- Purpose: start a backfill by hand.
-- Parameters: topic, group, messages at most, messages a second at most, actor, injected time.
-- Index: subscription_group, backfill_pkey.
SELECT {schema}.start_backfill($1, $2, $3, $4, $5, $6::timestamptz) AS subscription_id

-- name: backfill_step
-- Purpose: one batch of a worker's backfill.
-- Parameters: subscription, worker, offsets at most, for how long it stays the worker's in ms, injected time.
-- Index: record_pkey, backfill_pkey.
SELECT processed, changed FROM {schema}.step_backfill($1, $2, $3, $4, $5::timestamptz)

-- name: backfill_take
-- Purpose: give a worker a backfill that has work and no other worker.
-- Parameters: worker, for how long in ms, injected time.
-- Index: none; reads the backfills.
SELECT {schema}.take_backfill($1, $2, $3::timestamptz) AS subscription_id

-- name: backfill_turn
-- Purpose: cancel a backfill, or let it go on.
-- Parameters: topic, group, whether to resume, actor, injected time.
-- Index: subscription_group, backfill_pkey.
SELECT {schema}.turn_backfill($1, $2, $3, $4, $5::timestamptz) AS subscription_id

-- name: records
-- Purpose: what is recorded about the messages of a range.
-- Parameters: topic, first offset, last offset, records at most, injected time.
-- Index: message primary key, record_pkey.
SELECT message_offset, required, completed, completed_at FROM {schema}.records($1, $2, $3, $4, $5::timestamptz)

-- name: step
-- Purpose: one step over the records of a topic.
-- Parameters: topic id, offsets at most, injected time.
-- Index: record_pkey, message primary key, outstanding_due.
SELECT recorded, changed, completed, removed, more FROM {schema}.track($1, $2, $3::timestamptz)
