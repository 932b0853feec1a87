-- Purpose:    What tells the lanes of the messages of a range, and what they are called when they are buried.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key of the log
SELECT row_key, message_id, key
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2
ORDER BY row_key
