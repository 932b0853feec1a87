-- name: ahead
-- Purpose:    An owner seen in the future was seen by a clock that was ahead: it counts as seen now.
-- Parameters: ?1 now_ms
-- Index:      headwater_owner_seen: no entry, usually
UPDATE headwater_owner INDEXED BY headwater_owner_seen
SET seen_at_ms = ?1
WHERE seen_at_ms > ?1

-- name: beat
-- Purpose:    Notes that an owner is alive.
-- Parameters: ?1 owner, ?2 now_ms
-- Index:      the primary key
INSERT INTO headwater_owner (owner, seen_at_ms)
VALUES (?1, ?2)
ON CONFLICT (owner) DO UPDATE SET seen_at_ms = excluded.seen_at_ms

-- name: end_leases
-- Purpose:    Ends the leases of an owner that is dead: as long past their deadline as can be, so that no clock makes
--             their tokens valid again.
-- Parameters: ?1 owner, ?2 now_ms
-- Index:      headwater_range_leased, over the leases of everybody: owners die rarely, and an index by owner would cost
--             every claim and settlement
UPDATE headwater_range INDEXED BY headwater_range_leased
SET due_at_ms = 0
WHERE owner IS NOT NULL AND owner = ?1 AND due_at_ms > ?2
RETURNING token, (SELECT topic_id FROM headwater_subscription AS s WHERE s.subscription_id = headwater_range.subscription_id)

-- name: fold_activity
-- Purpose:    Adds what an owner that leaves has done to what is kept of those that left before.
-- Parameters: ?1 owner
-- Index:      a scan of the activities: owners leave rarely
INSERT INTO headwater_activity (
    subscription_id, owner, processed, failed, filtered, rate, handling_mean_us, handling_p95_us, told_at_ms
)
SELECT subscription_id, '', processed, failed, filtered, 0.0, 0, 0, told_at_ms
FROM headwater_activity
WHERE owner = ?1
ON CONFLICT (subscription_id, owner) DO UPDATE SET processed = processed + excluded.processed,
    failed = failed + excluded.failed, filtered = filtered + excluded.filtered,
    told_at_ms = max(told_at_ms, excluded.told_at_ms)

-- name: forget_activity
-- Purpose:    Forgets what an owner told, once it is added to what is kept.
-- Parameters: ?1 owner
-- Index:      a scan of the activities: owners leave rarely
DELETE FROM headwater_activity
WHERE owner = ?1

-- name: silent
-- Purpose:    The owners that have been silent for too long.
-- Parameters: ?1 the last seen_at_ms that is too long ago, plus 1
-- Index:      headwater_owner_seen: its first entry, while nobody is dead
SELECT owner
FROM headwater_owner
WHERE seen_at_ms < ?1
ORDER BY seen_at_ms
