-- name: fetch
-- Purpose: the messages of a closed range, by offset. A payload above a size is null and headers above it are '', and nothing of them
-- is sent: what is large is asked for by itself (fetch/sizes.sql). A column for its size would cost every fetch a fifth, and
-- most messages are small and have no headers: so those call no function over headers, either. Reads only.
-- Parameters: topic id, first offset, last offset, largest payload and largest headers that come along, most rows.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, message_id, key, message_type, CASE WHEN octet_length(payload) <= $4 THEN payload END, content_type,
       CASE WHEN headers IS NULL THEN NULL
            WHEN CASE WHEN pg_column_compression(headers) IS NULL THEN pg_column_size(headers) ELSE octet_length(headers::text) END <= $4
            THEN headers::text ELSE '' END,
       correlation_id, created_at
FROM {schema}.message
WHERE topic_id = $1 AND message_offset BETWEEN $2 AND $3
ORDER BY message_offset
LIMIT $5

-- name: headers
-- Purpose: the headers of several messages. Reads only.
-- Parameters: topic id, offsets.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, headers::text
FROM {schema}.message
WHERE topic_id = $1 AND message_offset = ANY ($2)

-- name: payload
-- Purpose: a piece of the payload of each of several messages. Reads only.
-- Parameters: topic id, offsets, first byte from 1, how many bytes.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, substring(payload FROM $3 FOR $4)
FROM {schema}.message
WHERE topic_id = $1 AND message_offset = ANY ($2)

-- name: sizes
-- Purpose: how large the payloads and headers of several messages are. Reads no payload.
-- Parameters: topic id, offsets.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, octet_length(payload),
       (SELECT sum(octet_length(h.key) + octet_length(h.value) + 64) FROM jsonb_each_text(headers) h)
FROM {schema}.message
WHERE topic_id = $1 AND message_offset = ANY ($2)
