-- Purpose: how each job of upkeep has been doing.
-- Parameters: none.
-- Index: none; a row per job.
SELECT job, runs, failures, rows, backlog, last_run_at, duration_us, last_error FROM {schema}.jobs()
