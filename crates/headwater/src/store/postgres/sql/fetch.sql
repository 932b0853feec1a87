-- Purpose: the messages of a closed range, by offset. Reads only.
-- Parameters: topic id, first offset, last offset.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, message_id, key, message_type, payload, content_type, headers::text, correlation_id, created_at
FROM {schema}.message
WHERE topic_id = $1 AND message_offset BETWEEN $2 AND $3
ORDER BY message_offset
