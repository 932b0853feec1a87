-- Purpose: give a worker a backfill that has work and no other worker.
-- Parameters: worker, for how long in ms, injected time.
-- Index: none; reads the backfills.
SELECT {schema}.take_backfill($1, $2, $3::timestamptz) AS subscription_id
