-- Purpose:    Copies a message to the dead letters.
-- Parameters: ?1 row_key, ?2 dead_letter_id, ?3 subscription_id, ?4 error, ?5 attempts, ?6 now_ms
-- Index:      the primary key of the log
INSERT INTO headwater_dead_letter (
    dead_letter_id, subscription_id, message_offset, message_id, key, type, content_type, headers, correlation_id,
    created_at_ms, error, attempts, buried_at_ms, payload
)
SELECT ?2, ?3, row_key & 8796093022207, message_id, key, type, content_type, headers, correlation_id,
    created_at_ms, ?4, ?5, ?6, payload
FROM headwater_message
WHERE row_key = ?1
