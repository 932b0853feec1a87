-- Purpose: the messages of a closed range, by offset; of payloads and headers above a size only how large they are. Nothing of such
-- a payload is read. A message without headers, or with small ones that are not compressed, costs no function over their content:
-- most have none, and each function is called once for every row. Reads only.
-- Parameters: topic id, first offset, last offset, largest payload and largest headers that come along, most rows.
-- Index: message primary key (topic_id, message_offset).
SELECT message_offset, message_id, key, message_type, CASE WHEN octet_length(payload) <= $4 THEN payload END, content_type,
       CASE WHEN headers IS NULL THEN NULL
            WHEN CASE WHEN pg_column_compression(headers) IS NULL THEN pg_column_size(headers) ELSE octet_length(headers::text) END <= $4
            THEN headers::text END,
       correlation_id, created_at,
       CASE WHEN octet_length(payload) > $4 THEN octet_length(payload) END,
       CASE WHEN headers IS NULL THEN NULL
            WHEN CASE WHEN pg_column_compression(headers) IS NULL THEN pg_column_size(headers) ELSE octet_length(headers::text) END > $4
            THEN (SELECT sum(octet_length(h.key) + octet_length(h.value) + 64) FROM jsonb_each_text(headers) h) END
FROM {schema}.message
WHERE topic_id = $1 AND message_offset BETWEEN $2 AND $3
ORDER BY message_offset
LIMIT $5
