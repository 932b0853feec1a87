-- Purpose:    Removes a range of messages.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key of the log
DELETE FROM headwater_message
WHERE row_key BETWEEN ?1 AND ?2
