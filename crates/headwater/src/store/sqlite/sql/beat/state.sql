-- Purpose:    How a subscription is, for a process that serves it.
-- Parameters: ?1 subscription_id
-- Index:      the primary keys
SELECT subscription.status, subscription.heartbeat_at_ms, topic.heartbeat_interval_ms, topic.topic_id, topic.name,
    subscription.group_name
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.subscription_id = ?1
