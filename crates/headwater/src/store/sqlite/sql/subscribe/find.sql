-- Purpose:    The subscription of a group, if there is one.
-- Parameters: ?1 topic_id, ?2 group
-- Index:      the unique index on (topic_id, group_name)
SELECT subscription_id, lanes
FROM headwater_subscription
WHERE topic_id = ?1 AND group_name = ?2
