-- Purpose:    The last tick fired of a job; on first use it begins at the time given.
-- Parameters: ?1 job, ?2 first
-- Index:      the primary key
INSERT INTO headwater_cron (job, last_tick_ms)
VALUES (?1, ?2)
ON CONFLICT (job) DO UPDATE SET last_tick_ms = last_tick_ms
RETURNING last_tick_ms
