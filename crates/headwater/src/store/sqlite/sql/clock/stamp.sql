-- Purpose:    Stores the time just read, and by how much deadlines were moved so far.
-- Parameters: ?1 now_ms, ?2 moved_ms
-- Index:      one row
UPDATE headwater_clock
SET latest_ms = ?1, moved_ms = ?2
