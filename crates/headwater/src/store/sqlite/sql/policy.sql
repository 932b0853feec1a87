-- name: get
-- Purpose:    The delivery policy of a subscription; NULL means the topic's setting.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
SELECT lease_ms, max_attempts, backoff_initial_ms, backoff_max_ms, heartbeat_interval_ms, heartbeat_timeout_ms
FROM headwater_subscription
WHERE subscription_id = ?1

-- name: set
-- Purpose:    Sets the delivery policy of a subscription.
-- Parameters: ?1 subscription_id, ?2 lease_ms, ?3 max_attempts, ?4 backoff_initial_ms, ?5 backoff_max_ms,
--             ?6 heartbeat_interval_ms, ?7 heartbeat_timeout_ms (each NULL for the topic's setting)
-- Index:      the primary key
UPDATE headwater_subscription
SET lease_ms = ?2, max_attempts = ?3, backoff_initial_ms = ?4, backoff_max_ms = ?5, heartbeat_interval_ms = ?6,
    heartbeat_timeout_ms = ?7
WHERE subscription_id = ?1

-- name: settings
-- Purpose:    The delivery policy of a subscription that is not cancelled, and the settings of its topic.
-- Parameters: ?1 subscription_id
-- Index:      the primary keys
SELECT s.lease_ms, s.max_attempts, s.backoff_initial_ms, s.backoff_max_ms, s.heartbeat_interval_ms,
    s.heartbeat_timeout_ms, t.settings
FROM headwater_subscription s
JOIN headwater_topic t ON t.topic_id = s.topic_id
WHERE s.subscription_id = ?1 AND s.state <> 'cancelled'
