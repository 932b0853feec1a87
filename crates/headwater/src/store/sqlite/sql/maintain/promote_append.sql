-- Purpose:    Copies one delayed message into the log.
-- Parameters: ?1 schedule_id, ?2 row_key, ?3 now_ms
-- Index:      the primary keys
INSERT INTO headwater_message (
    row_key, created_at_ms, message_id, key, type, content_type, headers, correlation_id, payload
)
SELECT ?2, ?3, message_id, key, type, content_type, headers, correlation_id, payload
FROM headwater_schedule
WHERE schedule_id = ?1
