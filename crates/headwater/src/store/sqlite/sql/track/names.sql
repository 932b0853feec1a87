-- Purpose:    Whose bit is whose, cancelled subscriptions too as long as they are there.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the store, few
SELECT bit, group_name
FROM headwater_subscription
WHERE topic_id = ?1 AND bit IS NOT NULL
