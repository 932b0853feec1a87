-- Purpose:    What a publish needs to know of its topic. It is blocked if it wants to be while no subscription
--             counts.
-- Parameters: ?1 name
-- Index:      the unique index on name; headwater_subscription_group, only for a topic that blocks
SELECT topic.topic_id, topic.last_offset, topic.payload_bytes_max, topic.dedup_window_ms,
    CASE WHEN topic.block_writes = 1 AND topic.semantics = 'pub_sub' THEN NOT EXISTS (
        SELECT 1 FROM headwater_subscription AS subscription
        WHERE subscription.topic_id = topic.topic_id AND subscription.status <> 'cancelled'
            AND subscription.status IN ('active', 'paused')
    ) ELSE 0 END
FROM headwater_topic AS topic
WHERE topic.name = ?1
