-- Purpose:    The messages of a closed range.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key of the log: one seek, then neighbours
SELECT row_key, message_id, key, type, payload, content_type, headers, correlation_id, created_at_ms
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2
ORDER BY row_key
