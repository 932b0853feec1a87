-- name: list
-- Purpose: all cron jobs by name.
-- Parameters: none.
-- Index: cron_pkey.
SELECT job, expression, time_zone, topic, started_at, last_tick FROM {schema}.cron ORDER BY job
