-- Purpose:    Active subscriptions that have been heard of, with what their topic allows.
-- Parameters: none
-- Index:      the subscriptions of the store, few
SELECT subscription.subscription_id, subscription.topic_id, topic.name, subscription.group_name,
    subscription.heartbeat_at_ms, subscription.suspected_at_ms, topic.heartbeat_interval_ms,
    topic.heartbeat_timeout_ms
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.status = 'active' AND subscription.heartbeat_at_ms IS NOT NULL
ORDER BY topic.name, subscription.group_name
