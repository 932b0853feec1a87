-- Purpose:    When somebody last looked for the dead.
-- Parameters: ?1 job
-- Index:      the primary key
SELECT last_run_at_ms
FROM headwater_job
WHERE job = ?1
