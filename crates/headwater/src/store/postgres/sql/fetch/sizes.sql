-- Purpose: how large the payloads and headers of several messages are. Reads no payload.
-- Parameters: topic id, offsets.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, octet_length(payload),
       (SELECT sum(octet_length(h.key) + octet_length(h.value) + 64) FROM jsonb_each_text(headers) h)
FROM {schema}.message
WHERE topic_id = $1 AND message_offset = ANY ($2)
