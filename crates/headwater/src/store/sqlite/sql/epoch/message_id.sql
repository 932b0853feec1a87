-- Purpose:    The id of one message: tells one history of the log from another.
-- Parameters: ?1 row_key
-- Index:      the primary key of the log
SELECT message_id
FROM headwater_message
WHERE row_key = ?1
