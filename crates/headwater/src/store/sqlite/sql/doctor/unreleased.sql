-- Purpose:    Counting subscriptions that pending records are told to let go of.
-- Parameters: none
-- Index:      the subscriptions of the store, few
SELECT subscription_id, topic_id
FROM headwater_subscription
WHERE status IN ('active', 'paused') AND released_until IS NOT NULL
