-- Purpose:    Subscriptions of topics that do not exist.
-- Parameters: none
-- Index:      the primary key of the topics
SELECT subscription.subscription_id, subscription.topic_id
FROM headwater_subscription AS subscription
WHERE NOT EXISTS (SELECT 1 FROM headwater_topic AS topic WHERE topic.topic_id = subscription.topic_id)
