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
-- Purpose: the next dead letters of a selection to redrive or purge, and whether their message is still in the log. What is
-- buried after the first page was read is not part of it.
-- Parameters: subscription id, ids, key, type, part of the error, buried from, buried before (each null for any), the last
-- letter of the page before (time, offset, id; null at first), when the first page was read (null at first), at most.
-- Index: dead_letter_subscription, message primary key.
SELECT d.dead_letter_id, d.message_offset, d.message_id, d.key, d.buried_at,
       EXISTS (SELECT FROM {schema}.messages(d.topic_id, d.message_offset, d.message_offset)) AS there,
       coalesce($11::timestamptz, statement_timestamp()) AS started
FROM {schema}.dead_letter d
WHERE d.subscription_id = $1 AND ($2::uuid[] IS NULL OR d.dead_letter_id = ANY ($2)) AND ($3::text IS NULL OR d.key = $3)
  AND ($4::text IS NULL OR d.message_type = $4) AND ($5::text IS NULL OR strpos(d.error, $5) > 0)
  AND ($6::timestamptz IS NULL OR d.buried_at >= $6) AND ($7::timestamptz IS NULL OR d.buried_at < $7)
  AND ($8::timestamptz IS NULL OR (d.buried_at, d.message_offset, d.dead_letter_id) > ($8, $9::bigint, $10::uuid))
  AND d.buried_at <= coalesce($11::timestamptz, statement_timestamp())
ORDER BY d.buried_at, d.message_offset, d.dead_letter_id LIMIT $12
