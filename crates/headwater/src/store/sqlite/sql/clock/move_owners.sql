-- Purpose:    Moves the stamps of owners by a step of the clock; none lies in the future then.
-- Parameters: ?1 step_ms, ?2 now_ms
-- Index:      none: one row for each process
UPDATE headwater_owner
SET seen_at_ms = min(seen_at_ms + ?1, ?2)
