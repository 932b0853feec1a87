-- Purpose:    The outstanding ranges of one lane, offsets rising.
-- Parameters: ?1 subscription_id, ?2 lane
-- Index:      headwater_range_lane
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_range INDEXED BY headwater_range_lane
WHERE subscription_id = ?1 AND lane = ?2
ORDER BY first_offset
