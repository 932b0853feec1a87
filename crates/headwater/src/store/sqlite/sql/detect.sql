-- name: ahead
-- Purpose:    Sets times of activity that were stored while the clock was ahead to the present.
-- Parameters: ?1 now_ms
-- Index:      a scan: as many rows as processes and their groups, once a minute
UPDATE headwater_activity
SET served_at_ms = ?1
WHERE served_at_ms > ?1

-- name: ahead_owners
-- Purpose:    Sets heartbeats of owners that were stored while the clock was ahead to the present.
-- Parameters: ?1 now_ms
-- Index:      a scan: as many rows as processes, once a minute
UPDATE headwater_owner
SET seen_at_ms = ?1
WHERE seen_at_ms > ?1

-- name: ahead_subscriptions
-- Purpose:    Sets heartbeats of subscriptions that were stored while the clock was ahead to the present.
-- Parameters: ?1 now_ms
-- Index:      the subscriptions of the store, few
UPDATE headwater_subscription
SET heartbeat_at_ms = ?1
WHERE heartbeat_at_ms > ?1

-- name: die
-- Purpose:    Declares an active subscription dead.
-- Parameters: ?1 subscription_id, ?2 now_ms, ?3 elapsed_ms
-- Index:      the primary key
UPDATE headwater_subscription
SET state = 'dead', state_at_ms = ?2, died_elapsed_ms = ?3, suspected_at_ms = NULL
WHERE subscription_id = ?1 AND state = 'active'

-- name: last_run
-- Purpose:    When dead groups were last detected.
-- Parameters: ?1 job
-- Index:      the primary key
SELECT last_run_at_ms
FROM headwater_job
WHERE job = ?1

-- name: ran
-- Purpose:    Records a run of the detection of dead groups.
-- Parameters: ?1 job, ?2 now_ms
-- Index:      the primary key
INSERT INTO headwater_job (job, last_run_at_ms)
VALUES (?1, ?2)
ON CONFLICT (job) DO UPDATE SET last_run_at_ms = excluded.last_run_at_ms

-- name: candidates
-- Purpose:    Active subscriptions with a heartbeat, and their heartbeat settings: their own, or their topic's.
-- Parameters: none
-- Index:      the subscriptions of the store, few
SELECT subscription.subscription_id, subscription.topic_id, topic.name, subscription.group_name,
    heard.heard_at_ms, subscription.suspected_at_ms,
    coalesce(subscription.heartbeat_interval_ms, topic.heartbeat_interval_ms),
    coalesce(subscription.heartbeat_timeout_ms, topic.heartbeat_timeout_ms)
FROM headwater_subscription AS subscription
JOIN headwater_heard AS heard ON heard.subscription_id = subscription.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.state = 'active' AND heard.heard_at_ms IS NOT NULL
ORDER BY topic.name, subscription.group_name

-- name: suspect
-- Purpose:    Marks a subscription as suspected to be dead, or clears the mark.
-- Parameters: ?1 subscription_id, ?2 since_ms or NULL
-- Index:      the primary key
UPDATE headwater_subscription
SET suspected_at_ms = ?2
WHERE subscription_id = ?1
