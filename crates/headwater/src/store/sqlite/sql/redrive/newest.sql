-- Purpose:    The newest dead letter of a subscription: what is buried after it is not part of a redrive that begins now.
-- Parameters: ?1 subscription_id
-- Index:      headwater_dead_letter_of
SELECT coalesce(max(dead_letter_key), 0)
FROM headwater_dead_letter
WHERE subscription_id = ?1
