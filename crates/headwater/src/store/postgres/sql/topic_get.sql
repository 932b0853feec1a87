-- name: topic_get
-- Purpose: one topic by name.
-- Parameters: name.
-- Index: topic_name_key.
SELECT t.topic_id, t.name, t.semantics, t.tracking, t.message_retention_ms, t.max_retention_ms,
       t.zero_subscription_retention_ms, t.block_writes, t.zombie_subscription_ttl_ms, t.lease_ms, t.max_attempts,
       t.backoff_initial_ms, t.backoff_max_ms, t.ordering, t.lanes, t.storage, t.partition, t.partition_rows,
       t.payload_bytes_max, t.dedup_window_ms, t.heartbeat_interval_ms, t.heartbeat_timeout_ms, t.ack_log, t.gap_patience_ms
FROM {schema}.topic t WHERE t.name = $1
