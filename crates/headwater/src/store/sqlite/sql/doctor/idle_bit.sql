-- Purpose:    Subscriptions with a bit, or with something to release, where messages have no records.
-- Parameters: none
-- Index:      the subscriptions of the store, few
SELECT subscription.subscription_id, subscription.topic_id
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE topic.tracking = 'offset_watermark' AND topic.change_until IS NULL
    AND (subscription.bit IS NOT NULL OR subscription.released_until IS NOT NULL)
