-- name: describe
-- Purpose:    Stores what a job does.
-- Parameters: ?1 job, ?2 expression, ?3 time_zone, ?4 topic, ?5 now_ms
-- Index:      the primary key
UPDATE headwater_cron
SET expression = ?2, time_zone = ?3, topic = ?4, started_at_ms = ?5
WHERE job = ?1

-- name: fire
-- Purpose:    Moves a job to a tick; changes nothing if the tick is not later. A last tick in the future comes from a clock
--             that was ahead, and does not block the job; a tick that is itself in the future does not move the job back.
-- Parameters: ?1 job, ?2 tick, ?3 the latest time that is not ahead
-- Index:      the primary key
INSERT INTO headwater_cron (job, last_tick_ms)
VALUES (?1, ?2)
ON CONFLICT (job) DO UPDATE SET last_tick_ms = excluded.last_tick_ms
WHERE headwater_cron.last_tick_ms < excluded.last_tick_ms
    OR (headwater_cron.last_tick_ms > ?3 AND excluded.last_tick_ms <= ?3)

-- name: last
-- Purpose:    The last tick fired of a job; a new job begins at the given time.
-- Parameters: ?1 job, ?2 first
-- Index:      the primary key
INSERT INTO headwater_cron (job, last_tick_ms)
VALUES (?1, ?2)
ON CONFLICT (job) DO UPDATE SET last_tick_ms = last_tick_ms
RETURNING last_tick_ms

-- name: list
-- Purpose:    All jobs by name.
-- Parameters: none
-- Index:      the primary key, in order
SELECT job, expression, time_zone, topic, started_at_ms, last_tick_ms
FROM headwater_cron
ORDER BY job
