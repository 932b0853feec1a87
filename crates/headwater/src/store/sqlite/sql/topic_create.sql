-- name: topic_create
-- Purpose:    Creates a topic.
-- Parameters: ?1 name, ?2 now_ms, ?3 semantics, ?4 lease_ms, ?5 max_attempts, ?6 backoff_initial_ms, ?7
--             backoff_max_ms, ?8 ordering, ?9 lanes, ?10 payload_bytes_max, ?11 dedup_window_ms, ?12 gap_patience_ms,
--             ?13 tracking, ?14 message_retention_ms, ?15 max_retention_ms, ?16 zero_subscription_retention_ms, ?17
--             block_writes, ?18 zombie_subscription_ttl_ms, ?19 heartbeat_interval_ms, ?20 heartbeat_timeout_ms, ?21
--             storage, ?22 partition, ?23 partition_rows, ?24 ack_log
-- Index:      the unique index on name, to refuse a second one
INSERT INTO headwater_topic (
    name, created_at_ms, semantics, lease_ms, max_attempts, backoff_initial_ms, backoff_max_ms, ordering, lanes,
    payload_bytes_max, dedup_window_ms, gap_patience_ms, tracking, message_retention_ms, max_retention_ms,
    zero_subscription_retention_ms, block_writes, zombie_subscription_ttl_ms, heartbeat_interval_ms,
    heartbeat_timeout_ms, storage, partition, partition_rows, ack_log
)
VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24
)
