-- Purpose: one topic by name.
-- Parameters: name.
-- Index: topic_name_key.
SELECT topic_id, name, semantics, lease_ms, max_attempts, backoff_initial_ms, backoff_max_ms, ordering, lanes,
       payload_bytes_max, dedup_window_ms, gap_patience_ms
FROM {schema}.topic WHERE name = $1
