-- Purpose:    Subscriptions cancelled since a time, or dead since an elapsed time, that hold nothing: no range, no letter, no
--             pending record. The dead group of a queue stays: without it nothing would be kept for its workers.
-- Parameters: ?1 since_ms, ?2 since_elapsed_ms
-- Index:      the subscriptions of the store, few; headwater_range_leased, headwater_range_waiting and
--             headwater_dead_letter_of: their first entry each
SELECT subscription.subscription_id, topic.name, subscription.group_name
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE (subscription.status = 'cancelled' AND subscription.status_at_ms <= ?1
        OR subscription.status = 'dead' AND topic.semantics = 'pub_sub' AND subscription.died_elapsed_ms <= ?2)
    AND subscription.released_until IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM headwater_range AS leased
        WHERE leased.subscription_id = subscription.subscription_id AND leased.owner IS NOT NULL
    )
    AND NOT EXISTS (
        SELECT 1 FROM headwater_range AS waiting
        WHERE waiting.subscription_id = subscription.subscription_id AND waiting.owner IS NULL
    )
    AND NOT EXISTS (
        SELECT 1 FROM headwater_dead_letter AS letter
        WHERE letter.subscription_id = subscription.subscription_id
    )
ORDER BY topic.name, subscription.group_name, subscription.subscription_id
