-- Purpose: the delivery policies of a topic's groups that are not cancelled; nulls take the topic's. One row without a group for
-- a topic that has none.
-- Parameters: topic.
-- Index: topic_name_key, subscription_group.
SELECT s.group_name, s.lease_ms, s.max_attempts, s.backoff_initial_ms, s.backoff_max_ms
FROM {schema}.topic t
LEFT JOIN {schema}.subscription s ON s.topic_id = t.topic_id AND s.status <> 'cancelled'
WHERE t.name = $1
