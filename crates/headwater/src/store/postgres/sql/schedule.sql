-- name: list
-- Purpose: the scheduled messages of a topic, by their time; without their payloads. Reads only.
-- Parameters: topic id, at most, after this time and number (null for the first ones).
-- Index: schedule_due.
SELECT s.deliver_at, s.message_id, s.key, s.message_type, s.content_type, s.headers::text AS headers, s.correlation_id, s.dedup_key,
       octet_length(s.payload)::bigint AS payload_bytes, s.schedule_id
FROM {schema}.schedule s
WHERE s.topic_id = $1 AND ($3::timestamptz IS NULL OR (s.deliver_at, s.schedule_id) > ($3, $4::bigint))
ORDER BY s.deliver_at, s.schedule_id
LIMIT $2
