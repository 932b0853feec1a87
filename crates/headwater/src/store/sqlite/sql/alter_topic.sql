-- name: alter_topic
-- Purpose:    Changes the settings of a topic, tracking apart: that is brought about step by step.
-- Parameters: ?1 topic_id, ?2 semantics, ?3 lease_ms, ?4 max_attempts, ?5 backoff_initial_ms, ?6 backoff_max_ms, ?7
--             ordering, ?8 lanes, ?9 payload_bytes_max, ?10 dedup_window_ms, ?11 gap_patience_ms, ?12 tracking, ?13
--             message_retention_ms, ?14 max_retention_ms, ?15 zero_subscription_retention_ms, ?16 block_writes, ?17
--             zombie_subscription_ttl_ms, ?18 heartbeat_interval_ms, ?19 heartbeat_timeout_ms, ?20 storage, ?21
--             partition, ?22 partition_rows, ?23 ack_log
-- Index:      the primary key
UPDATE headwater_topic
SET semantics = ?2, lease_ms = ?3, max_attempts = ?4, backoff_initial_ms = ?5, backoff_max_ms = ?6, ordering = ?7,
    lanes = ?8, payload_bytes_max = ?9, dedup_window_ms = ?10, gap_patience_ms = ?11, message_retention_ms = ?13,
    max_retention_ms = ?14, zero_subscription_retention_ms = ?15, block_writes = ?16,
    zombie_subscription_ttl_ms = ?17, heartbeat_interval_ms = ?18, heartbeat_timeout_ms = ?19, storage = ?20,
    partition = ?21, partition_rows = ?22, ack_log = ?23
WHERE topic_id = ?1
