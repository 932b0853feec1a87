-- name: create
-- Purpose: subscribe a group, or find the subscription it has; a dead one is resurrected.
-- Parameters: topic, group, start (beginning, now, offset, timestamp, bounded), its number, its time, how far back restarts
-- count in ms, injected time.
-- Index: subscription_group.
SELECT subscription_id, topic_id, lanes, lease_ms, max_attempts, backoff_initial_ms, backoff_max_ms, resurrected, missed
FROM {schema}.subscribe($1, $2, $3, $4, $5, $6, $7::timestamptz)

-- name: lanes
-- Purpose: how many lanes a subscription has.
-- Parameters: subscription id.
-- Index: subscription_pkey.
SELECT lanes FROM {schema}.subscription WHERE subscription_id = $1
