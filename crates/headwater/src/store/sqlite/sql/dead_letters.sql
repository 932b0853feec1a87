-- Purpose:    The dead letters of a subscription, oldest first.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      headwater_dead_letter_of
SELECT dead_letter_id, subscription_id, message_offset, message_id, key, type, payload, content_type, headers, error,
    attempts, buried_at_ms
FROM headwater_dead_letter
WHERE subscription_id = ?1
ORDER BY dead_letter_key
LIMIT ?2
