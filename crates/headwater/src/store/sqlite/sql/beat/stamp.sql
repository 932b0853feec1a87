-- Purpose:    Notes that a process of a subscription is alive.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      the primary key
UPDATE headwater_subscription
SET heartbeat_at_ms = ?2, suspected_at_ms = NULL
WHERE subscription_id = ?1
