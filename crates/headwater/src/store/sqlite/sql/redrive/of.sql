-- Purpose:    The subscription whose dead letters they are.
-- Parameters: ?1 subscription_id
-- Index:      the primary keys
SELECT subscription.topic_id, subscription.lanes, subscription.status, topic.name, subscription.group_name
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.subscription_id = ?1
