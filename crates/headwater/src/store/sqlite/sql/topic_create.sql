-- Purpose:    Creates a topic.
-- Parameters: ?1 name, ?2 semantics, ?3 lease_ms, ?4 max_attempts, ?5 backoff_initial_ms, ?6 backoff_max_ms, ?7 ordering,
--             ?8 lanes, ?9 payload_bytes_max, ?10 dedup_window_ms, ?11 gap_patience_ms, ?12 now_ms
-- Index:      the unique index on name, to refuse a second one
INSERT INTO headwater_topic (
    name, semantics, lease_ms, max_attempts, backoff_initial_ms, backoff_max_ms, ordering, lanes,
    payload_bytes_max, dedup_window_ms, gap_patience_ms, created_at_ms
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
