-- Purpose: one batch of a worker's backfill.
-- Parameters: subscription, worker, offsets at most, for how long it stays the worker's in ms, injected time.
-- Index: record_pkey, backfill_pkey.
SELECT processed, changed FROM {schema}.step_backfill($1, $2, $3, $4, $5::timestamptz)
