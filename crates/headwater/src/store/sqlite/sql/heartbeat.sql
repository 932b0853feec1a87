-- name: activity
-- Purpose:    Records that an owner serves a subscription, and its activity; writes nothing if that is already stored. A time
--             in the future was stored while the clock was ahead.
-- Parameters: ?1 subscription_id, ?2 owner, ?3 processed, ?4 failed, ?5 filtered, ?6 rate, ?7 handling_mean_us, ?8
--             handling_p95_us, ?9 now_ms
-- Index:      the primary key
INSERT INTO headwater_activity (
    subscription_id, owner, processed, failed, filtered, rate, handling_mean_us, handling_p95_us, serving, served_at_ms
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, ?9)
ON CONFLICT (subscription_id, owner) DO UPDATE SET processed = excluded.processed, failed = excluded.failed,
    filtered = excluded.filtered, rate = excluded.rate, handling_mean_us = excluded.handling_mean_us,
    handling_p95_us = excluded.handling_p95_us, serving = 1, served_at_ms = excluded.served_at_ms
WHERE (processed, failed, filtered, rate, handling_mean_us, handling_p95_us, serving)
    <> (excluded.processed, excluded.failed, excluded.filtered, excluded.rate, excluded.handling_mean_us,
        excluded.handling_p95_us, 1)
    OR served_at_ms > ?9

-- name: ahead
-- Purpose:    Sets heartbeats of owners that were stored while the clock was ahead to the present.
-- Parameters: ?1 now_ms
-- Index:      headwater_owner_seen: no entry, usually
UPDATE headwater_owner INDEXED BY headwater_owner_seen
SET seen_at_ms = ?1
WHERE judged = 1 AND seen_at_ms > ?1

-- name: depart
-- Purpose:    Removes an owner that leaves on purpose, or is dead and whose leases have ended.
-- Parameters: ?1 owner
-- Index:      the primary key
DELETE FROM headwater_owner
WHERE owner = ?1

-- name: end_leases
-- Purpose:    Ends the leases of a dead owner: their deadline becomes 0, so that no clock makes their tokens valid again.
-- Parameters: ?1 owner, ?2 now_ms
-- Index:      headwater_outstanding_leased, over the leases of all owners: owners die rarely, and an index by owner would cost
--             every claim and settlement
UPDATE headwater_outstanding INDEXED BY headwater_outstanding_leased
SET due_at_ms = 0
WHERE owner IS NOT NULL AND owner = ?1 AND due_at_ms > ?2
RETURNING token, (SELECT topic_id FROM headwater_subscription AS s WHERE s.subscription_id = headwater_outstanding.subscription_id)

-- name: fold_activity
-- Purpose:    Adds the activity of an owner that leaves to the sum of those that left before.
-- Parameters: ?1 owner
-- Index:      headwater_activity_owner
INSERT INTO headwater_activity (
    subscription_id, owner, processed, failed, filtered, rate, handling_mean_us, handling_p95_us, serving, served_at_ms
)
SELECT subscription_id, '', processed, failed, filtered, 0.0, 0, 0, 0, served_at_ms
FROM headwater_activity
WHERE owner = ?1
ON CONFLICT (subscription_id, owner) DO UPDATE SET processed = processed + excluded.processed,
    failed = failed + excluded.failed, filtered = filtered + excluded.filtered,
    served_at_ms = max(served_at_ms, excluded.served_at_ms)

-- name: forget_activity
-- Purpose:    Deletes the activity of an owner, once it is added to the sum.
-- Parameters: ?1 owner
-- Index:      headwater_activity_owner
DELETE FROM headwater_activity
WHERE owner = ?1

-- name: seen
-- Purpose:    Records that an owner is alive. An owner that is judged by its heartbeats stays so until it departs.
-- Parameters: ?1 owner, ?2 now_ms, ?3 whether missing heartbeats end its leases
-- Index:      the primary key
INSERT INTO headwater_owner (owner, seen_at_ms, judged)
VALUES (?1, ?2, ?3)
ON CONFLICT (owner) DO UPDATE SET seen_at_ms = excluded.seen_at_ms, judged = max(judged, excluded.judged)

-- name: serve_no_more
-- Purpose:    Records that an owner serves only these subscriptions. The others were served until its last heartbeat.
-- Parameters: ?1 owner, ?2 the subscriptions it serves, as JSON
-- Index:      headwater_activity_owner; the primary key
UPDATE headwater_activity
SET serving = 0,
    served_at_ms = max(served_at_ms, coalesce((SELECT seen_at_ms FROM headwater_owner WHERE owner = ?1), served_at_ms))
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
-- Purpose:    The state of a subscription, for an owner that serves it.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
SELECT state, topic_id, group_name
FROM headwater_subscription
WHERE subscription_id = ?1
