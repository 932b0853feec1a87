-- name: cursor
-- Purpose:    Sets the cursors of a subscription.
-- Parameters: ?1 subscription_id, ?2 next_offset
-- Index:      the primary key
UPDATE headwater_cursor
SET next_offset = ?2
WHERE subscription_id = ?1

-- name: leases
-- Purpose:    The number of live leases of a subscription.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      headwater_outstanding_leased, over the live leases only
SELECT count(DISTINCT token)
FROM headwater_outstanding INDEXED BY headwater_outstanding_leased
WHERE subscription_id = ?1 AND owner IS NOT NULL AND due_at_ms > ?2

-- name: subscription
-- Purpose:    Resets the count of restarts of a subscription that was moved.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
UPDATE headwater_subscription
SET restarts = 0, restarts_since_ms = NULL, restarts_floor = NULL
WHERE subscription_id = ?1
