-- Purpose:    The lowest record of a topic; NULL without any.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key
SELECT min(row_key)
FROM headwater_record
WHERE row_key BETWEEN ?1 AND ?2
