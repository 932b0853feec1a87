-- Purpose:    Backfills that are nobody's, are outside their bounds, failed, or are open for a group that does not count.
-- Parameters: none
-- Index:      the backfills of the store, as many as subscriptions at most
SELECT backfill.subscription_id, backfill.state, backfill.first_offset, backfill.last_offset, backfill.checkpoint,
    backfill.error
FROM headwater_backfill AS backfill
LEFT JOIN headwater_subscription AS subscription ON subscription.subscription_id = backfill.subscription_id
LEFT JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.subscription_id IS NULL
    OR backfill.checkpoint NOT BETWEEN backfill.first_offset - 1 AND backfill.last_offset
    OR backfill.state = 'failed'
    OR (backfill.state IN ('not_started', 'in_progress')
        AND (subscription.status = 'cancelled' OR subscription.status = 'dead' AND topic.semantics <> 'queue'))
