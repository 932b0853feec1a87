-- Purpose: how far backfills are, newest first.
-- Parameters: a subscription, or null for all.
-- Index: backfill_pkey.
SELECT topic, group_name, state, first_offset, last_offset, checkpoint, created_at, progressed_at, ran_ms, rate_max, error
FROM {schema}.backfills($1)
