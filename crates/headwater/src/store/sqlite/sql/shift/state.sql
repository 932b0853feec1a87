-- Purpose:    Moves a subscription from one state to another.
-- Parameters: ?1 subscription_id, ?2 from, ?3 to, ?4 now_ms
-- Index:      the primary key
UPDATE headwater_subscription
SET status = ?3, status_at_ms = ?4
WHERE subscription_id = ?1 AND status = ?2
