-- Purpose: the headers of several messages. Reads only.
-- Parameters: topic id, offsets.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, headers::text
FROM {schema}.message
WHERE topic_id = $1 AND message_offset = ANY ($2)
