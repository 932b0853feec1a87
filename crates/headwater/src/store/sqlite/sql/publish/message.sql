-- Purpose:    Appends one message.
-- Parameters: ?1 row_key, ?2 created_at_ms, ?3 message_id, ?4 key, ?5 type, ?6 content_type, ?7 headers,
--             ?8 correlation_id, ?9 payload
-- Index:      the primary key, at its end
INSERT INTO headwater_message (
    row_key, created_at_ms, message_id, key, type, content_type, headers, correlation_id, payload
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
