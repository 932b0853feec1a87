-- Purpose:    The records of a range of offsets.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 at most
-- Index:      the primary key
SELECT row_key, required, completed, completed_at_ms
FROM headwater_record
WHERE row_key BETWEEN ?1 AND ?2
ORDER BY row_key
LIMIT ?3
