-- Purpose:    Notes up to where messages were published while no subscription counted; NULL while none does, and then from
--             where on.
-- Parameters: ?1 topic_id
-- Index:      the primary key; headwater_subscription_group
UPDATE headwater_topic
SET zero_until = CASE WHEN EXISTS (
        SELECT 1 FROM headwater_subscription AS subscription
        WHERE subscription.topic_id = ?1 AND subscription.status <> 'cancelled'
            AND (subscription.status <> 'dead' OR headwater_topic.semantics = 'queue')
    ) THEN coalesce(zero_until, last_offset) END,
    zero_from = CASE WHEN zero_until IS NULL THEN zero_from ELSE last_offset + 1 END
WHERE topic_id = ?1
