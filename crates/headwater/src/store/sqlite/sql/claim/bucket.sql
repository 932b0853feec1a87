-- Purpose:    The token bucket of a subscription.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
SELECT tokens, filled_at_ms
FROM headwater_group_rate
WHERE subscription_id = ?1
