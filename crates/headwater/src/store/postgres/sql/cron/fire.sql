-- Purpose: move a job to a tick and publish its message, in one transaction; no row if the tick is not ahead of the job.
-- Parameters: job, tick, topic, message id, payload, key, type, content type, headers as JSON text, correlation id, dedup key,
-- delivery time, injected time.
-- Index: cron_pkey, topic_name_key; the log is appended to.
SELECT topic_id, offsets, duplicate_of
FROM {schema}.cron_fire($1, $2, $3, $4, $5, $6, $7, $8, $9::text::jsonb, $10, $11, $12, $13::timestamptz)
