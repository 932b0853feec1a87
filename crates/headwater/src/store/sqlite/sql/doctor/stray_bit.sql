-- Purpose:    Pending records of reference counting that wait for a group nobody is.
-- Parameters: none
-- Index:      a scan of headwater_record_pending
WITH known (topic_id, mask) AS (
    SELECT topic.topic_id, coalesce((
        SELECT sum(DISTINCT 1 << subscription.bit) FROM headwater_subscription AS subscription
        WHERE subscription.topic_id = topic.topic_id AND subscription.bit IS NOT NULL
            AND (subscription.status IN ('active', 'paused') OR subscription.released_until IS NOT NULL
                OR subscription.status = 'dead' AND topic.semantics = 'queue')
    ), 0)
    FROM headwater_topic AS topic
    WHERE topic.tracking = 'reference_counting'
)
SELECT known.topic_id, record.row_key & 8796093022207, record.required, record.completed
FROM known
JOIN headwater_record AS record
    ON record.row_key BETWEEN known.topic_id << 43 AND (known.topic_id << 43) | 8796093022207
WHERE record.completed_at_ms IS NULL AND (record.required | record.completed) & ~known.mask <> 0
