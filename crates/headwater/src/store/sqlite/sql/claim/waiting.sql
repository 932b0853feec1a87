-- Purpose:    Waiting ranges that are due, the longest due first.
-- Parameters: ?1 subscription_id, ?2 now_ms, ?3 at most
-- Index:      headwater_range_waiting
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_range INDEXED BY headwater_range_waiting
WHERE subscription_id = ?1 AND owner IS NULL AND due_at_ms <= ?2
ORDER BY due_at_ms, first_offset
LIMIT ?3
