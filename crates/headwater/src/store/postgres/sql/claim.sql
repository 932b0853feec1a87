-- name: claim
-- Purpose: hand out work to one owner for one or many subscriptions.
-- Parameters: owner, subscription ids, messages at most (each), lease in ms (each, null for the topic's), in flight at
-- most, messages per second and burst (each; an array that is null stands for no limits), durable, promote at most, rows
-- at most per advance, gaps at most, parked at most per lane, injected time, expected time, by
-- how much deadlines were moved before.
-- Index: cursor_pkey, outstanding_due, head_pkey; group_rate_pkey with limits.
SELECT kind, subscription_id, topic_id, token, first_offset, last_offset, attempt, nullif(deadline, 'infinity') AS deadline,
       suspect, lane, blocked_keys, recheck_ms, names, detail,
       -- Read once, by the server that handed out: null after a crash, until an epoch is begun.
       (SELECT e.epoch FROM {schema}.epoch e WHERE e.made_by = e.xmin) AS epoch
FROM {schema}.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::timestamptz, $14, $15)
