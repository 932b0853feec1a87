-- name: release_lease
-- Purpose:    The ranges leased under a token, whatever their deadline.
-- Parameters: ?1 token
-- Index:      the primary key
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_range
WHERE token = ?1 AND owner IS NOT NULL
ORDER BY first_offset
