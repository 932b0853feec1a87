-- Purpose: a piece of the payload of each of several messages. Reads only.
-- Parameters: topic id, offsets, first byte from 1, how many bytes.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, substring(payload FROM $3 FOR $4)
FROM {schema}.message
WHERE topic_id = $1 AND message_offset = ANY ($2)
