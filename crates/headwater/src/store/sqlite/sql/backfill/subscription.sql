-- Purpose:    The subscription of a group that is not cancelled.
-- Parameters: ?1 topic_id, ?2 group
-- Index:      headwater_subscription_group
SELECT subscription_id
FROM headwater_subscription
WHERE topic_id = ?1 AND group_name = ?2 AND status <> 'cancelled'
