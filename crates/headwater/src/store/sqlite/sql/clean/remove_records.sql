-- Purpose:    Removes the records of a range of messages.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key
DELETE FROM headwater_record
WHERE row_key BETWEEN ?1 AND ?2
