-- name: activity
-- Purpose:    Notes that an owner serves a subscription and what it has done for it; writes nothing if that is stored. A time in the
--             future was told by a clock that was ahead.
-- Parameters: ?1 subscription_id, ?2 owner, ?3 processed, ?4 failed, ?5 filtered, ?6 rate, ?7 handling_mean_us, ?8
--             handling_p95_us, ?9 now_ms
-- Index:      the primary key
INSERT INTO headwater_activity (
    subscription_id, owner, processed, failed, filtered, rate, handling_mean_us, handling_p95_us, serving, told_at_ms
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, ?9)
ON CONFLICT (subscription_id, owner) DO UPDATE SET processed = excluded.processed, failed = excluded.failed,
    filtered = excluded.filtered, rate = excluded.rate, handling_mean_us = excluded.handling_mean_us,
    handling_p95_us = excluded.handling_p95_us, serving = 1, told_at_ms = excluded.told_at_ms
WHERE (processed, failed, filtered, rate, handling_mean_us, handling_p95_us, serving)
    <> (excluded.processed, excluded.failed, excluded.filtered, excluded.rate, excluded.handling_mean_us,
        excluded.handling_p95_us, 1)
    OR told_at_ms > ?9

-- name: ahead
-- Purpose:    An owner seen in the future was seen by a clock that was ahead: it counts as seen now.
-- Parameters: ?1 now_ms
-- Index:      headwater_owner_seen: no entry, usually
UPDATE headwater_owner INDEXED BY headwater_owner_seen
SET seen_at_ms = ?1
WHERE judged = 1 AND seen_at_ms > ?1

-- name: depart
-- Purpose:    Forgets an owner: it leaves on purpose, or is dead and its leases have ended.
-- Parameters: ?1 owner
-- Index:      the primary key
DELETE FROM headwater_owner
WHERE owner = ?1

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
-- Index:      headwater_activity_owner
INSERT INTO headwater_activity (
    subscription_id, owner, processed, failed, filtered, rate, handling_mean_us, handling_p95_us, serving, told_at_ms
)
SELECT subscription_id, '', processed, failed, filtered, 0.0, 0, 0, 0, told_at_ms
FROM headwater_activity
WHERE owner = ?1
ON CONFLICT (subscription_id, owner) DO UPDATE SET processed = processed + excluded.processed,
    failed = failed + excluded.failed, filtered = filtered + excluded.filtered,
    told_at_ms = max(told_at_ms, excluded.told_at_ms)

-- name: forget_activity
-- Purpose:    Forgets what an owner told, once it is added to what is kept.
-- Parameters: ?1 owner
-- Index:      headwater_activity_owner
DELETE FROM headwater_activity
WHERE owner = ?1

-- name: seen
-- Purpose:    Notes that an owner is alive. One that is judged by its silence stays so until it departs.
-- Parameters: ?1 owner, ?2 now_ms, ?3 whether silence ends its leases
-- Index:      the primary key
INSERT INTO headwater_owner (owner, seen_at_ms, judged)
VALUES (?1, ?2, ?3)
ON CONFLICT (owner) DO UPDATE SET seen_at_ms = excluded.seen_at_ms, judged = max(judged, excluded.judged)

-- name: serve_no_more
-- Purpose:    An owner serves none but some any more. The others were served until its last heartbeat.
-- Parameters: ?1 owner, ?2 the subscriptions it serves, as JSON
-- Index:      headwater_activity_owner; the primary key
UPDATE headwater_activity
SET serving = 0,
    told_at_ms = max(told_at_ms, coalesce((SELECT seen_at_ms FROM headwater_owner WHERE owner = ?1), told_at_ms))
WHERE owner = ?1 AND serving = 1 AND subscription_id NOT IN (SELECT value FROM json_each(?2))

-- name: silent
-- Purpose:    The owners that have been silent for too long.
-- Parameters: ?1 the last seen_at_ms that is too long ago, plus 1
-- Index:      headwater_owner_seen: its first entry, while none is dead
SELECT owner
FROM headwater_owner
WHERE judged = 1 AND seen_at_ms < ?1
ORDER BY seen_at_ms

-- name: state
-- Purpose:    How a subscription is, for an owner that serves it.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
SELECT status, topic_id, group_name
FROM headwater_subscription
WHERE subscription_id = ?1
