-- Purpose:    A small read: the newest message of the last topic.
-- Parameters: none
-- Index:      the last entry of the log's primary key
SELECT length(payload)
FROM headwater_message
ORDER BY row_key DESC
LIMIT 1
