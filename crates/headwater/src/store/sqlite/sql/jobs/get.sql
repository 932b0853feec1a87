-- Purpose:    How a job has been doing.
-- Parameters: ?1 job
-- Index:      the primary key
SELECT runs, failures, rows, backlog, last_run_at_ms, duration_us, last_error
FROM headwater_job
WHERE job = ?1
