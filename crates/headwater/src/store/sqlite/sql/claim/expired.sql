-- Purpose:    The first lease whose deadline has passed.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      headwater_range_leased
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_range INDEXED BY headwater_range_leased
WHERE subscription_id = ?1 AND owner IS NOT NULL AND due_at_ms <= ?2
ORDER BY due_at_ms
LIMIT 1
