-- name: stored
-- Purpose:    How many messages are stored in a range, and the first and last of them.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key of the log, over the range
SELECT count(*), min(row_key), max(row_key)
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2
