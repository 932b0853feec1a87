-- name: inconsistent
-- Purpose:    How many of the oldest pending completion records of a topic are pending although every group is done.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 records to examine
-- Index:      headwater_completion_record_pending, as many entries
SELECT count(*)
FROM (
    SELECT required, completed FROM headwater_completion_record
    WHERE completed_at_ms IS NULL AND row_key BETWEEN ?1 AND ?2
    ORDER BY row_key
    LIMIT ?3
)
WHERE required & ~completed = 0
