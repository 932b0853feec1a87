-- Purpose: the messages of a closed range, by offset; of payloads above a size only how large they are, for which nothing of
-- them is read. Reads only.
-- Parameters: topic id, first offset, last offset, largest payload that comes along.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, message_id, key, message_type, CASE WHEN octet_length(payload) <= $4 THEN payload END, content_type,
       headers::text, correlation_id, created_at, octet_length(payload)
FROM {schema}.message
WHERE topic_id = $1 AND message_offset BETWEEN $2 AND $3
ORDER BY message_offset
