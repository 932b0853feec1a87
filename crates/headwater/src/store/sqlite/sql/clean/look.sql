-- Purpose:    The messages of a range with what retention asks of them.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary keys
SELECT message.row_key, message.created_at_ms, record.completed_at_ms
FROM headwater_message AS message
LEFT JOIN headwater_record AS record ON record.row_key = message.row_key
WHERE message.row_key BETWEEN ?1 AND ?2
ORDER BY message.row_key
