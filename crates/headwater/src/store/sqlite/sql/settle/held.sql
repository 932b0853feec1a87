-- Purpose:    The ranges of a live lease.
-- Parameters: ?1 token, ?2 now_ms, ?3 subscription_id, ?4 owner
-- Index:      the primary key
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_range
WHERE token = ?1 AND due_at_ms > ?2 AND +subscription_id = ?3 AND owner = ?4
ORDER BY first_offset
