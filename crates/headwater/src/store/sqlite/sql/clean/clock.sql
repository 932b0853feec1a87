-- Purpose:    Adds the time since the clock was last read to the elapsed time: nothing if it went back, and never more
--             than a step.
-- Parameters: ?1 now_ms, ?2 step_max_ms
-- Index:      the primary key
INSERT INTO headwater_elapsed (one, read_at_ms, elapsed_ms)
VALUES (1, ?1, 0)
ON CONFLICT (one) DO UPDATE SET elapsed_ms = elapsed_ms + min(max(?1 - read_at_ms, 0), ?2), read_at_ms = ?1
RETURNING elapsed_ms
