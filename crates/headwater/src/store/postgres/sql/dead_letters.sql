-- Purpose: the dead letters of a subscription, oldest first.
-- Parameters: subscription id, limit.
-- Index: dead_letter_subscription.
SELECT dead_letter_id, subscription_id, message_offset, message_id, key, message_type, payload, content_type,
       headers::text, error, attempts, buried_at
FROM {schema}.dead_letter WHERE subscription_id = $1
ORDER BY buried_at, message_offset LIMIT $2
