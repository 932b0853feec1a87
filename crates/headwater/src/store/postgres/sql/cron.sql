-- name: fire
-- Purpose: move a job to a tick and publish its message, in one transaction; no row if the tick is not ahead of the job.
-- Parameters: job, tick, topic, message id, payload, key, type, content type, headers as JSON text, correlation id, dedup key,
-- delivery time, injected time.
-- Index: cron_pkey, topic_name_key; the log is appended to.
SELECT topic_id, offsets, duplicate_of
FROM {schema}.cron_fire($1, $2, $3, $4, $5, $6, $7, $8, $9::text::jsonb, $10, $11, $12, $13::timestamptz)

-- name: last
-- Purpose: the last tick fired of a job; on first use it begins at the time given.
-- Parameters: job, first.
-- Index: cron_pkey.
SELECT {schema}.cron_last($1, $2) AS last_tick
