-- Purpose:    The first waiting range whose holder vanished.
-- Parameters: ?1 subscription_id
-- Index:      headwater_range_suspect
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_range INDEXED BY headwater_range_suspect
WHERE subscription_id = ?1 AND suspect = 1 AND owner IS NULL
ORDER BY first_offset
LIMIT 1
