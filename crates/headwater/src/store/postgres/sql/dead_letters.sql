-- name: dead_letters
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
