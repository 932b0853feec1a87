-- Purpose:    The oldest backfill with work to do that no other worker has. One that has it for longer than anybody gets
--             it was given it by a clock that was ahead.
-- Parameters: ?1 worker, ?2 now_ms, ?3 until when it would be given now
-- Index:      the primary keys; there are as many as subscriptions at most
SELECT backfill.subscription_id
FROM headwater_backfill AS backfill
JOIN headwater_subscription AS subscription ON subscription.subscription_id = backfill.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE backfill.state IN ('not_started', 'in_progress')
    AND topic.tracking = 'reference_counting'
    AND (subscription.status IN ('active', 'paused')
        OR subscription.status = 'dead' AND topic.semantics = 'queue')
    AND (backfill.worker IS NULL OR backfill.worker = ?1 OR backfill.worker_until_ms <= ?2
        OR backfill.worker_until_ms > ?3)
ORDER BY backfill.created_at_ms, backfill.subscription_id
LIMIT 1
