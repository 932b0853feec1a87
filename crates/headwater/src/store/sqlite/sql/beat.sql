-- name: activity
-- Purpose:    Notes what a process has done for a subscription.
-- Parameters: ?1 subscription_id, ?2 owner, ?3 processed, ?4 failed, ?5 filtered, ?6 rate, ?7 handling_mean_us, ?8
--             handling_p95_us, ?9 now_ms
-- Index:      the primary key
INSERT INTO headwater_activity (
    subscription_id, owner, processed, failed, filtered, rate, handling_mean_us, handling_p95_us, told_at_ms
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (subscription_id, owner) DO UPDATE SET processed = excluded.processed, failed = excluded.failed,
    filtered = excluded.filtered, rate = excluded.rate, handling_mean_us = excluded.handling_mean_us,
    handling_p95_us = excluded.handling_p95_us, told_at_ms = excluded.told_at_ms

-- name: stamp
-- Purpose:    Notes that a process of a subscription is alive.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      the primary key
UPDATE headwater_subscription
SET heartbeat_at_ms = ?2, suspected_at_ms = NULL
WHERE subscription_id = ?1

-- name: state
-- Purpose:    How a subscription is, for a process that serves it.
-- Parameters: ?1 subscription_id
-- Index:      the primary keys
SELECT subscription.status, subscription.heartbeat_at_ms, topic.heartbeat_interval_ms, topic.topic_id, topic.name,
    subscription.group_name
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.subscription_id = ?1
