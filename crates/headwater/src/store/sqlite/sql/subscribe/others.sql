-- Purpose:    The groups of a topic that are not cancelled, by name: a queue takes only one.
-- Parameters: ?1 topic_id
-- Index:      headwater_subscription_group
SELECT group_name
FROM headwater_subscription
WHERE topic_id = ?1 AND status <> 'cancelled'
ORDER BY group_name
