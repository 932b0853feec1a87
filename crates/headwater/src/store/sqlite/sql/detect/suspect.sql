-- Purpose:    A subscription is suspected to be dead, or is not any more.
-- Parameters: ?1 subscription_id, ?2 since_ms or NULL
-- Index:      the primary key
UPDATE headwater_subscription
SET suspected_at_ms = ?2
WHERE subscription_id = ?1
