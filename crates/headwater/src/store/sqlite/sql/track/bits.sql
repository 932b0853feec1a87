-- Purpose:    The bits that subscriptions of a topic have, and whether each is of one that is cancelled and that pending
--             records have let go of.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
SELECT bit, status = 'cancelled' AND released_until IS NULL
FROM headwater_subscription
WHERE topic_id = ?1 AND bit IS NOT NULL
