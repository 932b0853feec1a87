-- name: get
-- Purpose: the delivery policy of a group that is not cancelled; nulls take the topic's. One row without a subscription for a topic
-- that has no such group.
-- Parameters: topic, group.
-- Index: topic_name_key, subscription_group.
SELECT s.subscription_id, s.lease_ms, s.max_attempts, s.backoff_initial_ms, s.backoff_max_ms
FROM {schema}.topic t
LEFT JOIN {schema}.subscription s ON s.topic_id = t.topic_id AND s.group_name = $2 AND s.status <> 'cancelled'
WHERE t.name = $1

-- name: set
-- Purpose: give a group a delivery policy of its own; returns its state.
-- Parameters: topic, group, lease in ms, attempts, first and longest retry delay in ms (null for the topic's), actor, injected
-- time.
-- Index: subscription_group.
SELECT {schema}.set_policy($1, $2, $3, $4, $5, $6, $7, $8) AS state

-- name: settings
-- Purpose: the settings of subscriptions that are not cancelled: their topics', with their own policies applied.
-- Parameters: subscription ids.
-- Index: subscription_pkey, topic_pkey.
SELECT s.subscription_id, t.topic_id, t.name, t.semantics, t.tracking, t.message_retention_ms, t.max_retention_ms,
       t.zero_subscription_retention_ms, t.block_writes, t.zombie_subscription_ttl_ms,
       coalesce(s.lease_ms, t.lease_ms) AS lease_ms, coalesce(s.max_attempts, t.max_attempts) AS max_attempts,
       coalesce(s.backoff_initial_ms, t.backoff_initial_ms) AS backoff_initial_ms,
       coalesce(s.backoff_max_ms, t.backoff_max_ms) AS backoff_max_ms, t.ordering, t.lanes, t.storage, t.partition,
       t.partition_rows, t.payload_bytes_max, t.dedup_window_ms, t.heartbeat_interval_ms, t.heartbeat_timeout_ms,
       t.ack_log, t.gap_patience_ms
FROM {schema}.subscription s
JOIN {schema}.topic t ON t.topic_id = s.topic_id
WHERE s.subscription_id = ANY ($1) AND s.status <> 'cancelled'
