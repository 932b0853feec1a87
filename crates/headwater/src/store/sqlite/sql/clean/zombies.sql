-- Purpose:    Subscriptions that have been dead for longer than their topic allows. The group of a queue never is.
-- Parameters: ?1 elapsed_ms
-- Index:      the subscriptions of the store, few
SELECT subscription.subscription_id, topic.name, subscription.group_name
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.status = 'dead' AND topic.semantics = 'pub_sub'
    AND subscription.died_elapsed_ms <= ?1 - topic.zombie_subscription_ttl_ms
ORDER BY topic.name, subscription.group_name
