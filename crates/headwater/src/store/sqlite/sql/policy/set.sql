-- Purpose:    Gives a subscription a delivery policy of its own.
-- Parameters: ?1 subscription_id, ?2 lease_ms, ?3 max_attempts, ?4 backoff_initial_ms, ?5 backoff_max_ms (each NULL
--             to take the topic's)
-- Index:      the primary key
UPDATE headwater_subscription
SET lease_ms = ?2, max_attempts = ?3, backoff_initial_ms = ?4, backoff_max_ms = ?5
WHERE subscription_id = ?1
