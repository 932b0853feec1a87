-- Purpose: the last tick fired of a job; on first use it begins at the time given.
-- Parameters: job, first.
-- Index: cron_pkey.
SELECT {schema}.cron_last($1, $2) AS last_tick
