-- name: ack_all
-- Purpose:    Acks a whole lease. Fenced by token, owner, subscription and deadline: a slow worker may continue after its lease
--             was reassigned.
-- Parameters: ?1 token, ?2 now_ms, ?3 subscription_id, ?4 owner
-- Index:      the primary key
DELETE FROM headwater_outstanding
WHERE token = ?1 AND due_at_ms > ?2 AND +subscription_id = ?3 AND owner = ?4
RETURNING subscription_id, lane

-- name: ack_log
-- Purpose:    Logs who acked a range, if its topic keeps an ack log.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset, ?4 lane, ?5 owner, ?6 now_ms
-- Index:      the primary keys
INSERT INTO headwater_ack_log (topic_id, first_offset, last_offset, lane, lanes, group_name, owner, acked_at_ms)
SELECT topic.topic_id, ?2, ?3, ?4, subscription.lanes, subscription.group_name, ?5, ?6
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.subscription_id = ?1 AND topic.ack_log = 1

-- name: any_ack_log
-- Purpose:    Whether any topic keeps an ack log.
-- Parameters: none
-- Index:      headwater_topic_ack_log, which is empty if none does
SELECT EXISTS (
    SELECT 1 FROM headwater_topic INDEXED BY headwater_topic_ack_log
    WHERE ack_log = 1
)

-- name: extend
-- Purpose:    Moves the deadline of a live lease. Fenced as a settlement is.
-- Parameters: ?1 token, ?2 now_ms, ?3 subscription_id, ?4 owner, ?5 due_at_ms
-- Index:      the primary key
UPDATE headwater_outstanding
SET due_at_ms = ?5
WHERE token = ?1 AND due_at_ms > ?2 AND +subscription_id = ?3 AND owner = ?4

-- name: held
-- Purpose:    The ranges of a live lease.
-- Parameters: ?1 token, ?2 now_ms, ?3 subscription_id, ?4 owner
-- Index:      the primary key
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_outstanding
WHERE token = ?1 AND due_at_ms > ?2 AND +subscription_id = ?3 AND owner = ?4
ORDER BY first_offset

-- name: release
-- Purpose:    The ranges of a live lease, whatever its owner.
-- Parameters: ?1 token, ?2 now_ms
-- Index:      the primary key
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_outstanding
WHERE token = ?1 AND owner IS NOT NULL AND due_at_ms > ?2
ORDER BY first_offset

-- name: remove
-- Purpose:    Removes the ranges of a token before the rest of them is stored again.
-- Parameters: ?1 token
-- Index:      the primary key
DELETE FROM headwater_outstanding
WHERE token = ?1

-- name: wake
-- Purpose:    Wakes waiters of other processes, because a message may be claimable.
-- Parameters: ?1 topic_id
-- Index:      the primary key
UPDATE headwater_topic
SET wakes = wakes + 1
WHERE topic_id = ?1

-- name: topic
-- Purpose:    The topic and lanes of a subscription.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
SELECT topic_id, lanes
FROM headwater_subscription
WHERE subscription_id = ?1
