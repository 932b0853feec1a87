-- name: list
-- Purpose: how each job of upkeep has been doing.
-- Parameters: none.
-- Index: none; a row per job.
SELECT job, runs, failures, rows, backlog, last_run_at, duration_us, last_error FROM {schema}.jobs()

-- name: probe
-- Purpose: a small piece of work as applications do them: a read, and a commit that waits for the log to be flushed. The
--   commit is of an empty logical message: it needs no row, so it leaves none dead. Decoding plug-ins do not send them
--   unless asked to.
-- Parameters: none.
-- Index: topic_pkey.
SELECT (SELECT t.topic_id FROM {schema}.topic t ORDER BY t.topic_id LIMIT 1) IS NULL,
       pg_catalog.pg_logical_emit_message(true, 'headwater probe', '')

-- name: ran
-- Purpose: note that a job was run.
-- Parameters: job, duration in us, rows, backlog, error, injected time.
-- Index: job_pkey.
SELECT {schema}.job_ran($1, $2, $3, $4, $5, $6::timestamptz)
