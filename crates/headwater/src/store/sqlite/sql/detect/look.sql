-- Purpose:    Notes that somebody looked for the dead.
-- Parameters: ?1 job, ?2 now_ms
-- Index:      the primary key
INSERT INTO headwater_job (job, last_run_at_ms)
VALUES (?1, ?2)
ON CONFLICT (job) DO UPDATE SET last_run_at_ms = excluded.last_run_at_ms
