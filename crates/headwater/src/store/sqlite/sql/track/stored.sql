-- Purpose:    The stored messages of a range of offsets.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 at most
-- Index:      the primary key of the log
SELECT row_key
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2
ORDER BY row_key
LIMIT ?3
