-- Purpose:    Ends a lease. Fenced by token and deadline: a slow worker may wake after its lease moved on.
-- Parameters: ?1 token, ?2 now_ms
-- Index:      the primary key
DELETE FROM headwater_range
WHERE token = ?1 AND owner IS NOT NULL AND due_at_ms > ?2
RETURNING subscription_id, lane
