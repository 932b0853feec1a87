-- Purpose: note that a job was run.
-- Parameters: job, duration in us, rows, backlog, error, injected time.
-- Index: job_pkey.
SELECT {schema}.job_ran($1, $2, $3, $4, $5, $6::timestamptz)
