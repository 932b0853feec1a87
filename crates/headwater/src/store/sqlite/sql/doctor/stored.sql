-- Purpose:    Which offsets of a range have a message.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key of the log
SELECT row_key
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2
ORDER BY row_key
