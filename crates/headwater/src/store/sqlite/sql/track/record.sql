-- Purpose:    Makes the records of a range of messages for whom the same groups are required and done.
-- Parameters: ?1 row_key from, ?2 row_key to, ?3 required, ?4 completed, ?5 completed_at_ms
-- Index:      the primary keys
INSERT OR IGNORE INTO headwater_record (row_key, required, completed, completed_at_ms)
SELECT row_key, ?3, ?4, ?5
FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2
