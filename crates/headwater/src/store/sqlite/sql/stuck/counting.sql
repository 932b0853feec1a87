-- Purpose:    The subscriptions of a topic that count, by group.
-- Parameters: ?1 topic_id
-- Index:      headwater_subscription_group
SELECT subscription_id, group_name
FROM headwater_subscription
WHERE topic_id = ?1 AND status <> 'cancelled' AND status IN ('active', 'paused')
ORDER BY group_name
