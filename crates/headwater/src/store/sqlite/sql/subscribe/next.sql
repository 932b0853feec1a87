-- Purpose:    The first offset never handed out, of the slowest lane.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
SELECT min(next_offset)
FROM headwater_cursor
WHERE subscription_id = ?1
