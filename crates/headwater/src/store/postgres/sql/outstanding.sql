-- name: outstanding
-- Purpose: what a subscription has handed out and is not done, oldest due first, parked last.
-- Parameters: subscription id, at most, injected time.
-- Index: outstanding_due; sorted, for people only.
SELECT o.token, o.first_offset, o.last_offset, o.lane, o.owner, o.attempts, o.last_error, o.key, o.suspect, o.parked,
       CASE WHEN isfinite(o.due_at) THEN o.due_at END AS due_at,
       o.due_at <= coalesce($3, clock_timestamp()) AS is_over
FROM {schema}.outstanding o
WHERE o.subscription_id = $1
ORDER BY o.parked, o.due_at, o.first_offset, o.lane LIMIT $2
