-- Purpose:    What a publish needs to know of its topic.
-- Parameters: ?1 name
-- Index:      the unique index on name
SELECT topic_id, last_offset, payload_bytes_max, dedup_window_ms
FROM headwater_topic
WHERE name = ?1
