-- name: publish
-- Purpose: publish a batch, all or nothing, in whatever transaction is open.
-- Parameters: topic, message ids, payloads, keys, types, content types, headers as JSON text, correlation ids, dedup
-- keys, delivery times (an array that is null stands for a column of nulls), injected time, whether the transaction
-- is publish's own and so is never prepared, expected time, delays in ms.
-- Index: topic_name_key; the log is appended to.
SELECT topic_id, offsets, duplicate_of
FROM {schema}.publish_batch($1, $2, $3, $4, $5, $6, $7::text[]::jsonb[], $8, $9, $10::timestamptz[], $11::timestamptz, $12, $13::timestamptz, $14)
