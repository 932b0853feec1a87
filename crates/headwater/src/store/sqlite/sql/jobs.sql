-- name: get
-- Purpose:    The statistics of a job.
-- Parameters: ?1 job
-- Index:      the primary key
SELECT runs, failures, rows, backlog, last_run_at_ms, duration_us, last_error
FROM headwater_job
WHERE job = ?1

-- name: ran
-- Purpose:    Records a run of a job. The detection of dead groups has stored its time itself.
-- Parameters: ?1 job, ?2 rows, ?3 backlog, ?4 now_ms, ?5 duration_us, ?6 error, ?7 whether it is the detector
-- Index:      the primary key
INSERT INTO headwater_job (job, runs, failures, rows, backlog, last_run_at_ms, duration_us, last_error)
VALUES (?1, 1, ?6 IS NOT NULL, ?2, ?3, CASE WHEN ?7 THEN 0 ELSE ?4 END, ?5, ?6)
ON CONFLICT (job) DO UPDATE
SET runs = runs + 1,
    failures = failures + excluded.failures,
    rows = rows + excluded.rows,
    backlog = excluded.backlog,
    last_run_at_ms = CASE WHEN ?7 THEN last_run_at_ms ELSE excluded.last_run_at_ms END,
    duration_us = excluded.duration_us,
    last_error = excluded.last_error
