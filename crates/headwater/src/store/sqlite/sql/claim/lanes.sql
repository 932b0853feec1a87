-- Purpose:    The lanes of an ordered subscription, the least recently claimed first.
-- Parameters: ?1 subscription_id
-- Index:      the primary key; at most LANES_MAX rows are sorted
SELECT lane, next_offset
FROM headwater_cursor
WHERE subscription_id = ?1
ORDER BY turn, lane
