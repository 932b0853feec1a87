-- Purpose:    How many pending records follow a key, at most so many, and the last of them.
-- Parameters: ?1 row_key after, ?2 row_key to, ?3 at most
-- Index:      headwater_record_pending
SELECT count(*), max(row_key)
FROM (
    SELECT row_key FROM headwater_record
    WHERE row_key > ?1 AND row_key <= ?2 AND completed_at_ms IS NULL
    ORDER BY row_key
    LIMIT ?3
)
