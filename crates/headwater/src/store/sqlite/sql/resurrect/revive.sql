-- Purpose:    Brings a dead subscription back, as if it had just beaten.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      the primary key
UPDATE headwater_subscription
SET status = 'active', status_at_ms = ?2, heartbeat_at_ms = ?2, suspected_at_ms = NULL
WHERE subscription_id = ?1 AND status = 'dead'
