-- name: extend
-- Purpose:    Moves the deadline of a live lease. Fenced as a settlement is.
-- Parameters: ?1 token, ?2 now_ms, ?3 subscription_id, ?4 owner, ?5 due_at_ms
-- Index:      the primary key
UPDATE headwater_range
SET due_at_ms = ?5
WHERE token = ?1 AND due_at_ms > ?2 AND +subscription_id = ?3 AND owner = ?4
