-- Purpose:    Topics that know wrongly whether a subscription counts, or since where.
-- Parameters: none
-- Index:      the topics and subscriptions of the store
SELECT topic_id, zero_until, last_offset, counting
FROM (
    SELECT topic.topic_id, topic.zero_until, topic.last_offset,
        EXISTS (
            SELECT 1 FROM headwater_subscription AS subscription
            WHERE subscription.topic_id = topic.topic_id
                AND (subscription.status IN ('active', 'paused')
                    OR subscription.status = 'dead' AND topic.semantics = 'queue')
        ) AS counting
    FROM headwater_topic AS topic
)
WHERE (zero_until IS NOT NULL) <> counting OR zero_until > last_offset
