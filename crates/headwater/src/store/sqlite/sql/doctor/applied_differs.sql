-- Purpose:    Pending records that show a counting group otherwise than what is known to be set.
-- Parameters: none
-- Index:      headwater_record_pending for each subscription; the primary key of what is set
SELECT subscription.subscription_id, record.row_key & 8796093022207, (record.completed >> subscription.bit) & 1
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
JOIN headwater_record AS record
    ON record.row_key BETWEEN topic.topic_id << 43 AND (topic.topic_id << 43) | 8796093022207
WHERE topic.tracking = 'reference_counting'
    AND (subscription.status IN ('active', 'paused')
        OR subscription.status = 'dead' AND topic.semantics = 'queue')
    AND record.completed_at_ms IS NULL
    AND (record.required >> subscription.bit) & 1
    AND (record.completed >> subscription.bit) & 1 <> coalesce((
        SELECT applied.last_offset >= record.row_key & 8796093022207 FROM headwater_applied AS applied
        WHERE applied.subscription_id = subscription.subscription_id
            AND applied.first_offset <= record.row_key & 8796093022207
        ORDER BY applied.first_offset DESC
        LIMIT 1
    ), 0)
