-- Purpose:    The cancelled subscriptions of a group, and whether pending records still name them.
-- Parameters: ?1 topic_id, ?2 group
-- Index:      headwater_subscription_cancelled
SELECT subscription_id, bit IS NOT NULL AND released_until IS NOT NULL
FROM headwater_subscription
WHERE topic_id = ?1 AND group_name = ?2 AND status = 'cancelled'
