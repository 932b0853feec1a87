-- Purpose:    Counting subscriptions that pending records are told to let go of.
-- Parameters: none
-- Index:      the subscriptions of the store, few
SELECT subscription.subscription_id, subscription.topic_id
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.released_until IS NOT NULL
    AND (subscription.status IN ('active', 'paused')
        OR subscription.status = 'dead' AND topic.semantics = 'queue')
