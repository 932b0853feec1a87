-- Purpose:    Moves a job to a tick; changes nothing if the tick is not ahead of it.
-- Parameters: ?1 job, ?2 tick
-- Index:      the primary key
INSERT INTO headwater_cron (job, last_tick_ms)
VALUES (?1, ?2)
ON CONFLICT (job) DO UPDATE SET last_tick_ms = excluded.last_tick_ms
WHERE headwater_cron.last_tick_ms < excluded.last_tick_ms
