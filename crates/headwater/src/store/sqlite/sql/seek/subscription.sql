-- Purpose:    Notes that a subscription was moved: its restarts are counted anew.
-- Parameters: ?1 subscription_id, ?2 next_offset
-- Index:      the primary key
UPDATE headwater_subscription
SET required_from = min(required_from, ?2), applied_until = min(applied_until, ?2 - 1), restarts = 0, restarts_since_ms = NULL, restarts_floor = NULL
WHERE subscription_id = ?1
