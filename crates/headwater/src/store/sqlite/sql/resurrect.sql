-- name: advance
-- Purpose:    Moves cursors up to an offset; those beyond it stay.
-- Parameters: ?1 subscription_id, ?2 next_offset
-- Index:      the primary key
UPDATE headwater_cursor
SET next_offset = ?2
WHERE subscription_id = ?1 AND next_offset < ?2

-- name: cut_below
-- Purpose:    Cuts off the parts of outstanding ranges below an offset.
-- Parameters: ?1 subscription_id, ?2 offset
-- Index:      a scan of the outstanding ranges: it happens rarely
UPDATE headwater_outstanding
SET first_offset = ?2
WHERE subscription_id = ?1 AND first_offset < ?2 AND last_offset >= ?2

-- name: forget_below
-- Purpose:    Deletes outstanding ranges wholly below an offset.
-- Parameters: ?1 subscription_id, ?2 offset, ?3 the latest due_at_ms of leases that are deleted too
-- Index:      a scan of the outstanding ranges: it happens rarely
DELETE FROM headwater_outstanding
WHERE subscription_id = ?1 AND last_offset < ?2 AND (owner IS NULL OR due_at_ms <= ?3)

-- name: revive
-- Purpose:    Resurrects a dead subscription; this counts as a heartbeat.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      the primary key
UPDATE headwater_subscription
SET state = 'active', state_at_ms = ?2, heartbeat_at_ms = ?2, suspected_at_ms = NULL
WHERE subscription_id = ?1 AND state = 'dead'
