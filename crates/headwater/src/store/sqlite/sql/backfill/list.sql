-- Purpose:    The backfills, newest first: all, or a subscription's.
-- Parameters: ?1 subscription_id or NULL
-- Index:      the primary keys; there are as many as subscriptions at most
SELECT backfill.subscription_id, topic.topic_id, topic.name, subscription.group_name, topic.tracking, backfill.state,
    backfill.first_offset, backfill.last_offset, backfill.checkpoint, backfill.rate_max, backfill.created_at_ms,
    backfill.progressed_at_ms, backfill.ran_ms, backfill.error, backfill.worker, backfill.worker_until_ms
FROM headwater_backfill AS backfill
JOIN headwater_subscription AS subscription ON subscription.subscription_id = backfill.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE backfill.subscription_id = coalesce(?1, backfill.subscription_id)
ORDER BY backfill.created_at_ms DESC, backfill.subscription_id DESC
