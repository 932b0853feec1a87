-- Purpose:    Subscriptions of a topic that have the same bit.
-- Parameters: none
-- Index:      the subscriptions of the store, few
SELECT topic_id, bit, min(subscription_id), max(subscription_id)
FROM headwater_subscription
WHERE bit IS NOT NULL
GROUP BY topic_id, bit
HAVING count(*) > 1
