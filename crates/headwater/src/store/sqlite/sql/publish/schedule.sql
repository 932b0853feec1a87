-- Purpose:    Stores a delayed message.
-- Parameters: ?1 topic_id, ?2 deliver_at_ms, ?3 message_id, ?4 key, ?5 type, ?6 content_type, ?7 headers,
--             ?8 correlation_id, ?9 dedup_key, ?10 payload
-- Index:      headwater_schedule_due gets an entry
INSERT INTO headwater_schedule (
    topic_id, deliver_at_ms, message_id, key, type, content_type, headers, correlation_id, dedup_key, payload
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
