-- Purpose:    The bits that subscriptions of a topic have, cancelled ones too.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
SELECT bit
FROM headwater_subscription
WHERE topic_id = ?1 AND bit IS NOT NULL
