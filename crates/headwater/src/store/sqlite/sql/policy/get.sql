-- Purpose:    The delivery policy of a subscription; NULL takes the topic's.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
SELECT lease_ms, max_attempts, backoff_initial_ms, backoff_max_ms
FROM headwater_subscription
WHERE subscription_id = ?1
