-- Purpose:    Ranges of what is set in records that run backwards, overlap, reach beyond the records, or are nobody's.
-- Parameters: none
-- Index:      a scan of what is set; the primary keys
SELECT applied.subscription_id, applied.first_offset, applied.last_offset
FROM headwater_applied AS applied
LEFT JOIN headwater_subscription AS subscription ON subscription.subscription_id = applied.subscription_id
LEFT JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE topic.topic_id IS NULL
    OR applied.first_offset > applied.last_offset
    OR applied.last_offset > max(topic.tracked_until, topic.first_offset - 1)
    OR EXISTS (
        SELECT 1 FROM headwater_applied AS other
        WHERE other.subscription_id = applied.subscription_id
            AND other.first_offset > applied.first_offset AND other.first_offset <= applied.last_offset
    )
