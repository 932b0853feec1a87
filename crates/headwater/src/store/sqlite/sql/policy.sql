-- name: get
-- Purpose:    The delivery policy of a subscription; NULL takes the topic's.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
SELECT lease_ms, max_attempts, backoff_initial_ms, backoff_max_ms
FROM headwater_subscription
WHERE subscription_id = ?1

-- name: set
-- Purpose:    Gives a subscription a delivery policy of its own.
-- Parameters: ?1 subscription_id, ?2 lease_ms, ?3 max_attempts, ?4 backoff_initial_ms, ?5 backoff_max_ms (each NULL
--             to take the topic's)
-- Index:      the primary key
UPDATE headwater_subscription
SET lease_ms = ?2, max_attempts = ?3, backoff_initial_ms = ?4, backoff_max_ms = ?5
WHERE subscription_id = ?1

-- name: settings
-- Purpose:    The settings of a subscription that is not cancelled: its topic's, with its own policy applied.
-- Parameters: ?1 subscription_id
-- Index:      the primary keys
SELECT t.topic_id, t.name, t.semantics, coalesce(s.lease_ms, t.lease_ms) AS lease_ms,
    coalesce(s.max_attempts, t.max_attempts) AS max_attempts,
    coalesce(s.backoff_initial_ms, t.backoff_initial_ms) AS backoff_initial_ms,
    coalesce(s.backoff_max_ms, t.backoff_max_ms) AS backoff_max_ms, t.ordering, t.lanes, t.payload_bytes_max,
    t.dedup_window_ms, t.gap_patience_ms, t.tracking, t.message_retention_ms, t.max_retention_ms,
    t.zero_subscription_retention_ms, t.block_writes, t.zombie_subscription_ttl_ms, t.heartbeat_interval_ms,
    t.heartbeat_timeout_ms, t.storage, t.partition, t.partition_rows, t.ack_log
FROM headwater_subscription s
JOIN headwater_topic t ON t.topic_id = s.topic_id
WHERE s.subscription_id = ?1 AND s.status <> 'cancelled'
