-- Purpose:    Subscriptions without a bit where messages have records.
-- Parameters: none
-- Index:      the subscriptions of the store, few
SELECT subscription.subscription_id, subscription.topic_id
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE topic.tracking = 'reference_counting' AND subscription.status <> 'cancelled' AND subscription.bit IS NULL
