-- name: get
-- Purpose: the delivery policy of a group that is not cancelled; nulls take the topic's. One row without a subscription for a topic
-- that has no such group.
-- Parameters: topic, group.
-- Index: topic_name_key, subscription_group.
SELECT s.subscription_id, s.lease_ms, s.max_attempts, s.backoff_initial_ms, s.backoff_max_ms, s.heartbeat_interval_ms,
       s.heartbeat_timeout_ms
FROM {schema}.topic t
LEFT JOIN {schema}.subscription s ON s.topic_id = t.topic_id AND s.group_name = $2 AND s.state <> 'cancelled'
WHERE t.name = $1

-- name: settings
-- Purpose: the delivery policies of subscriptions that are not cancelled, and the settings of their topics.
-- Parameters: subscription ids.
-- Index: subscription_pkey, topic_pkey.
SELECT s.subscription_id, s.lease_ms, s.max_attempts, s.backoff_initial_ms, s.backoff_max_ms, s.heartbeat_interval_ms,
       s.heartbeat_timeout_ms, t.settings
FROM {schema}.subscription s
JOIN {schema}.topic t ON t.topic_id = s.topic_id
WHERE s.subscription_id = ANY ($1) AND s.state <> 'cancelled'
