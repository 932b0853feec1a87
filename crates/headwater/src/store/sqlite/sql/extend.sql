-- Purpose:    Moves the deadline of a live lease. Fenced as a settlement is.
-- Parameters: ?1 token, ?2 now_ms, ?3 due_at_ms
-- Index:      the primary key
UPDATE headwater_range
SET due_at_ms = ?3
WHERE token = ?1 AND owner IS NOT NULL AND due_at_ms > ?2
