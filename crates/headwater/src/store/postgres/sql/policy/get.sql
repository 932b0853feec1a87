-- Purpose: the delivery policy a group was given.
-- Parameters: topic id, group.
-- Index: subscription_group.
SELECT s.lease_ms, s.max_attempts, s.backoff_initial_ms, s.backoff_max_ms
FROM {schema}.subscription s WHERE s.topic_id = $1 AND s.group_name = $2 AND s.status <> 'cancelled'
