-- Purpose:    Removes the lowest records of a topic.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 at most
-- Index:      the primary key
DELETE FROM headwater_record
WHERE row_key IN (
    SELECT row_key FROM headwater_record
    WHERE row_key BETWEEN ?1 AND ?2
    ORDER BY row_key
    LIMIT ?3
)
