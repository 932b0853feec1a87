-- Purpose:    The subscriptions of a topic that pending records have not let go of.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
SELECT subscription_id, bit, released_until
FROM headwater_subscription
WHERE topic_id = ?1 AND released_until IS NOT NULL AND bit IS NOT NULL AND status IN ('dead', 'cancelled')
ORDER BY subscription_id
