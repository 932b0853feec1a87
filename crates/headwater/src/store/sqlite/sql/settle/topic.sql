-- Purpose:    The topic and lanes of a subscription.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
SELECT topic_id, lanes
FROM headwater_subscription
WHERE subscription_id = ?1
