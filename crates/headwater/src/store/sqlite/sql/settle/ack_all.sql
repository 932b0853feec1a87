-- Purpose:    Ends a lease. Fenced by token, owner, subscription and deadline: a slow worker may wake after
--             its lease moved on.
-- Parameters: ?1 token, ?2 now_ms, ?3 subscription_id, ?4 owner
-- Index:      the primary key
DELETE FROM headwater_range
WHERE token = ?1 AND due_at_ms > ?2 AND +subscription_id = ?3 AND owner = ?4
RETURNING subscription_id, lane
