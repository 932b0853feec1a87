-- name: topic_get
-- Purpose:    A topic by its name.
-- Parameters: ?1 name
-- Index:      the unique index on name
SELECT topic_id, name, semantics, lease_ms, max_attempts, backoff_initial_ms, backoff_max_ms, ordering, lanes,
    payload_bytes_max, dedup_window_ms, gap_patience_ms, tracking, message_retention_ms, max_retention_ms,
    zero_subscription_retention_ms, block_writes, zombie_subscription_ttl_ms, heartbeat_interval_ms,
    heartbeat_timeout_ms, storage, partition, partition_rows, ack_log
FROM headwater_topic
WHERE name = ?1
