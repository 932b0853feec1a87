-- Purpose:    The outstanding ranges of a subscription that begin at or below an offset.
-- Parameters: ?1 subscription_id, ?2 offset
-- Index:      headwater_range_leased, headwater_range_waiting: every row is in one of them
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_range
WHERE subscription_id = ?1 AND owner IS NOT NULL AND first_offset <= ?2
UNION ALL
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_range
WHERE subscription_id = ?1 AND owner IS NULL AND first_offset <= ?2
