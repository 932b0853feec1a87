-- Purpose:    Takes the bits back from cancelled subscriptions that no record names any more.
-- Parameters: ?1 topic_id, ?2 the bits that are in records
-- Index:      headwater_subscription_cancelled
UPDATE headwater_subscription
SET bit = NULL
WHERE topic_id = ?1 AND status = 'cancelled' AND released_until IS NULL AND bit IS NOT NULL AND (?2 >> bit) & 1 = 0
