-- name: all
-- Purpose: dead letters of every source, oldest first.
-- Parameters: source (subscription, outbox, command), ids as a JSON array, key, name, part of the error, topic, group, part of the error,
-- name, key or command id in any case (each null for any), after this place and id (null for the first ones), whether with payloads, at most.
-- Index: dead_letter_buried, in its order.
SELECT e.dead_letter_id::text AS dead_letter_id, coalesce(e.source, 'subscription') AS source, coalesce(e.topic, t.name) AS topic,
       s.group_name, e.subscription_id, e.message_offset, e.outbox_id, coalesce(e.command_id, e.message_id::text) AS command_id,
       e.message_type AS name, e.key, CASE WHEN $11::boolean THEN e.payload ELSE ''::bytea END AS payload,
       octet_length(e.payload)::bigint AS payload_bytes, e.content_type, e.headers::text AS headers, e.correlation_id,
       CASE WHEN e.source IS NULL THEN 'FAILED' ELSE e.failed_status END AS failed_status, e.error_class, e.error, e.attempts, e.parked_by,
       (extract(epoch FROM e.created_at) * 1000000)::bigint AS created_at_us,
       (extract(epoch FROM e.buried_at) * 1000000)::bigint AS parked_at_us, (extract(epoch FROM e.buried_at) * 1000000)::bigint AS place
FROM {schema}.dead_letter e
LEFT JOIN {schema}.subscription s ON s.subscription_id = e.subscription_id
LEFT JOIN {schema}.topic t ON t.topic_id = s.topic_id
WHERE ($1::text IS NULL OR coalesce(e.source, 'subscription') = $1)
  AND ($2::jsonb IS NULL OR e.dead_letter_id = ANY (ARRAY(SELECT i::uuid FROM jsonb_array_elements_text($2::jsonb) i)))
  AND ($3::text IS NULL OR e.key = $3) AND ($4::text IS NULL OR e.message_type = $4)
  AND ($5::text IS NULL OR strpos(e.error, $5) > 0)
  AND ($6::text IS NULL OR coalesce(e.topic, t.name) = $6) AND ($7::text IS NULL OR s.group_name = $7)
  AND ($8::text IS NULL OR strpos(lower(concat_ws(E'\n', e.error, e.message_type, e.key, e.command_id)), lower($8)) > 0)
  AND ($9::bigint IS NULL OR (e.buried_at, e.dead_letter_id) > ('epoch'::timestamptz + $9 * interval '1 microsecond', $10::text::uuid))
ORDER BY e.buried_at, e.dead_letter_id LIMIT $12

-- name: count
-- Purpose: how many dead letters of a selection a redrive would hand out, and how many have lost their message.
-- Parameters: subscription id, ids, key, type, part of the error, buried from, buried before (each null for any), at most (null for
-- any): of those that would be handed out.
-- Index: dead_letter_subscription, message primary key. The log is searched by a function that is planned each time, a thousand
-- offsets at once: a cached plan on the log locks every partition of every topic.
WITH selected AS MATERIALIZED (
    SELECT d.topic_id, d.message_offset, dense_rank() OVER (ORDER BY d.message_offset) / 1000 AS chunk FROM {schema}.dead_letter d
    WHERE d.subscription_id = $1 AND ($2::uuid[] IS NULL OR d.dead_letter_id = ANY ($2)) AND ($3::text IS NULL OR d.key = $3)
      AND ($4::text IS NULL OR d.message_type = $4) AND ($5::text IS NULL OR strpos(d.error, $5) > 0)
      AND ($6::timestamptz IS NULL OR d.buried_at >= $6) AND ($7::timestamptz IS NULL OR d.buried_at < $7)
), stored AS MATERIALIZED (
    SELECT unnest({schema}.stored_among(min(s.topic_id), array_agg(s.message_offset))) AS message_offset FROM selected s GROUP BY s.chunk
)
SELECT least(count(m.message_offset), $8::bigint) AS redriven, count(*) - count(m.message_offset) AS gone
FROM selected s LEFT JOIN stored m ON m.message_offset = s.message_offset

-- name: known
-- Purpose: what decides how dead letters of any source are redriven or deleted, oldest first.
-- Parameters: ids as a JSON array.
-- Index: the primary key.
SELECT e.dead_letter_id::text AS dead_letter_id, e.subscription_id, e.topic, octet_length(e.payload)::bigint AS payload_bytes
FROM {schema}.dead_letter e
WHERE e.dead_letter_id = ANY (ARRAY(SELECT i::uuid FROM jsonb_array_elements_text($1::jsonb) i))
ORDER BY e.buried_at, e.dead_letter_id

-- name: list
-- Purpose: the dead letters of a selection, oldest first.
-- Parameters: subscription id, ids, key, type, part of the error, buried from, buried before (each null for any), at most.
-- Index: dead_letter_subscription.
SELECT dead_letter_id, subscription_id, message_offset, message_id, key, message_type, payload, content_type,
       headers::text, error, attempts, buried_at, correlation_id, created_at
FROM {schema}.dead_letter d
WHERE d.subscription_id = $1 AND ($2::uuid[] IS NULL OR d.dead_letter_id = ANY ($2)) AND ($3::text IS NULL OR d.key = $3)
  AND ($4::text IS NULL OR d.message_type = $4) AND ($5::text IS NULL OR strpos(d.error, $5) > 0)
  AND ($6::timestamptz IS NULL OR d.buried_at >= $6) AND ($7::timestamptz IS NULL OR d.buried_at < $7)
ORDER BY buried_at, message_offset, dead_letter_id LIMIT $8

-- name: page
-- Purpose: the next dead letters of a selection to redrive or purge, whether their message is still in the log, and the stored size
-- of their payload, which is read without the payload. What is buried after the first page was read is not part of it.
-- Parameters: subscription id, ids, key, type, part of the error, buried from, buried before (each null for any), the last
-- letter of the page before (time, offset, id; null at first), when the first page was read (null at first), at most.
-- Index: dead_letter_subscription, message primary key. The log is searched as by "count".
WITH page AS MATERIALIZED (
    SELECT d.topic_id, d.dead_letter_id, d.message_offset, d.message_id, d.key, d.buried_at, pg_column_size(d.payload) AS bytes
    FROM {schema}.dead_letter d
    WHERE d.subscription_id = $1 AND ($2::uuid[] IS NULL OR d.dead_letter_id = ANY ($2)) AND ($3::text IS NULL OR d.key = $3)
      AND ($4::text IS NULL OR d.message_type = $4) AND ($5::text IS NULL OR strpos(d.error, $5) > 0)
      AND ($6::timestamptz IS NULL OR d.buried_at >= $6) AND ($7::timestamptz IS NULL OR d.buried_at < $7)
      AND ($8::timestamptz IS NULL OR (d.buried_at, d.message_offset, d.dead_letter_id) > ($8, $9::bigint, $10::uuid))
      AND d.buried_at <= coalesce($11::timestamptz, statement_timestamp())
    ORDER BY d.buried_at, d.message_offset, d.dead_letter_id LIMIT $12
), stored AS MATERIALIZED (
    SELECT unnest({schema}.stored_among(min(p.topic_id), array_agg(p.message_offset))) AS message_offset FROM page p
)
SELECT p.dead_letter_id, p.message_offset, p.message_id, p.key, p.buried_at, m.message_offset IS NOT NULL AS there,
       coalesce($11::timestamptz, statement_timestamp()) AS started, p.bytes
FROM page p LEFT JOIN stored m ON m.message_offset = p.message_offset
ORDER BY p.buried_at, p.message_offset, p.dead_letter_id
