-- Purpose:    The delivery policies of a topic's groups that are not cancelled; NULL takes the topic's.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the topic
SELECT lease_ms, max_attempts, backoff_initial_ms, backoff_max_ms, group_name
FROM headwater_subscription
WHERE topic_id = ?1 AND status <> 'cancelled'
