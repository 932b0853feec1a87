-- name: outstanding
-- Purpose:    What a subscription has handed out and is not done, oldest due first, parked last.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      headwater_range_leased, headwater_range_waiting: every row is in one of them; sorted, for people only
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_range
WHERE subscription_id = ?1 AND owner IS NOT NULL
UNION ALL
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_range INDEXED BY headwater_range_waiting
WHERE subscription_id = ?1 AND owner IS NULL
ORDER BY parked, due_at_ms, first_offset, lane
LIMIT ?2
