-- name: fire
-- Purpose:    Moves a job to a tick; changes nothing if the tick is not ahead of it. A last tick ahead of time is of a clock
--             that was ahead, and holds nothing up; a tick that is ahead of time itself takes nothing back.
-- Parameters: ?1 job, ?2 tick, ?3 the latest time that is not ahead
-- Index:      the primary key
INSERT INTO headwater_cron (job, last_tick_ms)
VALUES (?1, ?2)
ON CONFLICT (job) DO UPDATE SET last_tick_ms = excluded.last_tick_ms
WHERE headwater_cron.last_tick_ms < excluded.last_tick_ms
    OR (headwater_cron.last_tick_ms > ?3 AND excluded.last_tick_ms <= ?3)

-- name: last
-- Purpose:    The last tick fired of a job; on first use it begins at the time given.
-- Parameters: ?1 job, ?2 first
-- Index:      the primary key
INSERT INTO headwater_cron (job, last_tick_ms)
VALUES (?1, ?2)
ON CONFLICT (job) DO UPDATE SET last_tick_ms = last_tick_ms
RETURNING last_tick_ms
