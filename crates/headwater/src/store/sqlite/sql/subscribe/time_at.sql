-- Purpose:    The first stored message at or above an offset: its key and time.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key of the log
SELECT row_key, created_at_ms
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2
ORDER BY row_key
LIMIT 1
