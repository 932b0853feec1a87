-- Purpose: note why a worker's backfill stopped.
-- Parameters: subscription, worker, error.
-- Index: backfill_pkey.
SELECT {schema}.fail_backfill($1, $2, $3)
