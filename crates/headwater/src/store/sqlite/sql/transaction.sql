-- name: enter
-- Purpose:    Inserts the inbox entry of a handler and message; nothing is inserted if it exists.
-- Parameters: ?1 handler, ?2 message_id, ?3 now_ms
-- Index:      the primary key
INSERT INTO headwater_inbox (handler, message_id, processed_at_ms)
VALUES (?1, ?2, ?3)
ON CONFLICT (message_id, handler) DO NOTHING
