-- name: fetch
-- Purpose:    The messages of a closed range; of payloads above a size only how large they are, which needs none of their pages.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 largest payload that comes along
-- Index:      the primary key of the log: one seek, then neighbours
SELECT row_key, message_id, key, type, CASE WHEN length(payload) > ?3 THEN length(payload) ELSE payload END,
    content_type, headers, correlation_id, created_at_ms
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2
ORDER BY row_key
