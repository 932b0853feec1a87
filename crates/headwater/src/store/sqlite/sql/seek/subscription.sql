-- Purpose:    Notes that a subscription was moved: its restarts are counted anew, and only a place beyond the end is
--             a start.
-- Parameters: ?1 subscription_id, ?2 next_offset, ?3 head
-- Index:      the primary key
UPDATE headwater_subscription
SET start_offset = CASE WHEN ?2 > ?3 + 1 THEN ?2 ELSE start_offset END, required_from = min(required_from, ?2),
    restarts = 0, restarts_since_ms = NULL, restarts_floor = NULL
WHERE subscription_id = ?1
