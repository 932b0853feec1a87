-- name: advance
-- Purpose:    Moves a cursor past what was handed out.
-- Parameters: ?1 subscription_id, ?2 lane (0 if unordered), ?3 next_offset
-- Index:      the primary key
UPDATE headwater_cursor
SET next_offset = ?3,
    turn = (SELECT counter.next_offset FROM headwater_cursor AS counter WHERE counter.subscription_id = 0 AND counter.lane = 0)
WHERE subscription_id = ?1 AND lane = ?2

-- name: bucket
-- Purpose:    The token bucket of a subscription.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
SELECT tokens, filled_at_ms
FROM headwater_group_rate
WHERE subscription_id = ?1

-- name: bucket_store
-- Purpose:    Stores the token bucket of a subscription.
-- Parameters: ?1 subscription_id, ?2 tokens, ?3 filled_at_ms
-- Index:      the primary key
INSERT INTO headwater_group_rate (subscription_id, tokens, filled_at_ms)
VALUES (?1, ?2, ?3)
ON CONFLICT (subscription_id) DO UPDATE SET tokens = excluded.tokens, filled_at_ms = excluded.filled_at_ms

-- name: expired
-- Purpose:    The first lease whose deadline has passed.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      headwater_outstanding_leased
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_outstanding INDEXED BY headwater_outstanding_leased
WHERE subscription_id = ?1 AND owner IS NOT NULL AND due_at_ms <= ?2
ORDER BY due_at_ms
LIMIT 1

-- name: holds
-- Purpose:    Whether an owner holds a live lease of a subscription.
-- Parameters: ?1 subscription_id, ?2 owner, ?3 now_ms
-- Index:      headwater_outstanding_leased, over the live leases only
SELECT EXISTS (
    SELECT 1 FROM headwater_outstanding INDEXED BY headwater_outstanding_leased
    WHERE subscription_id = ?1 AND owner IS NOT NULL AND due_at_ms > ?3 AND owner = ?2
)

-- name: in_flight
-- Purpose:    The offsets each live lease of a subscription spans.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      headwater_outstanding_leased, over the live leases only; they are grouped by token
SELECT sum(last_offset - first_offset + 1)
FROM headwater_outstanding INDEXED BY headwater_outstanding_leased
WHERE subscription_id = ?1 AND owner IS NOT NULL AND due_at_ms > ?2
GROUP BY token

-- name: lane_ranges
-- Purpose:    The outstanding ranges of one lane, offsets rising.
-- Parameters: ?1 subscription_id, ?2 lane
-- Index:      headwater_outstanding_lane
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_outstanding INDEXED BY headwater_outstanding_lane
WHERE subscription_id = ?1 AND lane = ?2
ORDER BY first_offset

-- name: lanes
-- Purpose:    The lanes of an ordered subscription, the least recently claimed first.
-- Parameters: ?1 subscription_id
-- Index:      the primary key; at most LANES_MAX rows are sorted
SELECT lane, next_offset
FROM headwater_cursor
WHERE subscription_id = ?1
ORDER BY turn, lane

-- name: lanes_held
-- Purpose:    The lanes that are leased now.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      headwater_outstanding_leased, over the live leases only
SELECT DISTINCT lane
FROM headwater_outstanding INDEXED BY headwater_outstanding_leased
WHERE subscription_id = ?1 AND owner IS NOT NULL AND due_at_ms > ?2 AND lane IS NOT NULL

-- name: more
-- Purpose:    Whether a subscription has something to hand out.
-- Parameters: ?1 subscription_id, ?2 head, ?3 now_ms
-- Index:      the primary key of the cursors; headwater_outstanding_leased and headwater_outstanding_waiting
SELECT EXISTS (
    SELECT 1 FROM headwater_cursor WHERE subscription_id = ?1 AND next_offset <= ?2
) OR EXISTS (
    SELECT 1 FROM headwater_outstanding AS leased INDEXED BY headwater_outstanding_leased
    WHERE leased.subscription_id = ?1 AND leased.owner IS NOT NULL AND leased.due_at_ms <= ?3
) OR EXISTS (
    SELECT 1 FROM headwater_outstanding AS waiting INDEXED BY headwater_outstanding_waiting
    WHERE waiting.subscription_id = ?1 AND waiting.owner IS NULL AND waiting.due_at_ms <= ?3 AND waiting.parked = 0
)

-- name: next_due
-- Purpose:    When the next lease expires, and the next waiting range is due.
-- Parameters: ?1 subscription_id, ?2 now_ms
-- Index:      headwater_outstanding_leased and headwater_outstanding_waiting, one entry each
SELECT
    (
        SELECT leased.due_at_ms FROM headwater_outstanding AS leased INDEXED BY headwater_outstanding_leased
        WHERE leased.subscription_id = ?1 AND leased.owner IS NOT NULL AND leased.due_at_ms > ?2
        ORDER BY leased.due_at_ms
        LIMIT 1
    ),
    (
        SELECT waiting.due_at_ms FROM headwater_outstanding AS waiting INDEXED BY headwater_outstanding_waiting
        WHERE waiting.subscription_id = ?1 AND waiting.owner IS NULL AND waiting.due_at_ms > ?2
        ORDER BY waiting.due_at_ms
        LIMIT 1
    )

-- name: range_delete
-- Purpose:    Removes one outstanding range.
-- Parameters: ?1 token, ?2 first_offset
-- Index:      the primary key
DELETE FROM headwater_outstanding
WHERE token = ?1 AND first_offset = ?2

-- name: range_insert
-- Purpose:    Stores an outstanding range.
-- Parameters: ?1 token, ?2 first_offset, ?3 last_offset, ?4 subscription_id, ?5 lane, ?6 owner, ?7 due_at_ms, ?8 attempts,
--             ?9 suspect, ?10 parked, ?11 key, ?12 last_error
-- Index:      the primary key; the partial indexes it falls under
INSERT INTO headwater_outstanding (
    token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)

-- name: reassigned
-- Purpose:    Counts an expired lease, and returns the names for the log line.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
UPDATE headwater_subscription
SET reassigned = reassigned + 1
WHERE subscription_id = ?1
RETURNING group_name, (SELECT name FROM headwater_topic WHERE headwater_topic.topic_id = headwater_subscription.topic_id)

-- name: state
-- Purpose:    Everything a claim needs of one subscription, in one query.
-- Parameters: ?1 subscription_id, ?2 owner, ?3 now_ms
-- Index:      primary keys; headwater_outstanding_leased, headwater_outstanding_waiting, headwater_schedule_due: their first entry
--             each; headwater_outstanding_suspect, which has only ranges whose lease expired
SELECT subscription.topic_id, subscription.lanes,
    coalesce(subscription.lease_ms, topic.lease_ms), coalesce(subscription.max_attempts, topic.max_attempts),
    topic.last_offset, cursor.next_offset,
    (
        SELECT leased.due_at_ms FROM headwater_outstanding AS leased INDEXED BY headwater_outstanding_leased
        WHERE leased.subscription_id = ?1 AND leased.owner IS NOT NULL
        ORDER BY leased.due_at_ms
        LIMIT 1
    ),
    (
        SELECT waiting.due_at_ms FROM headwater_outstanding AS waiting INDEXED BY headwater_outstanding_waiting
        WHERE waiting.subscription_id = ?1 AND waiting.owner IS NULL
        ORDER BY waiting.due_at_ms
        LIMIT 1
    ),
    (
        SELECT schedule.deliver_at_ms FROM headwater_schedule AS schedule
        WHERE schedule.topic_id = subscription.topic_id
        ORDER BY schedule.deliver_at_ms
        LIMIT 1
    ),
    (
        SELECT max(held.due_at_ms) FROM headwater_outstanding AS held INDEXED BY headwater_outstanding_suspect
        WHERE held.subscription_id = ?1 AND held.suspect = 1 AND held.owner = ?2 AND held.due_at_ms > ?3
    ),
    subscription.state
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
JOIN headwater_cursor AS cursor ON cursor.subscription_id = subscription.subscription_id AND cursor.lane = 0
WHERE subscription.subscription_id = ?1

-- name: suspect
-- Purpose:    The first waiting range whose lease expired.
-- Parameters: ?1 subscription_id
-- Index:      headwater_outstanding_suspect
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_outstanding INDEXED BY headwater_outstanding_suspect
WHERE subscription_id = ?1 AND suspect = 1 AND owner IS NULL
ORDER BY first_offset
LIMIT 1

-- name: token
-- Purpose:    Counts a hand-out. The counter only rises, also when ranges are removed.
-- Parameters: none
-- Index:      the primary key
UPDATE headwater_cursor
SET next_offset = next_offset + 1
WHERE subscription_id = 0 AND lane = 0
RETURNING next_offset

-- name: touch
-- Purpose:    Records that a lane was claimed, without moving its cursor.
-- Parameters: ?1 subscription_id, ?2 lane
-- Index:      the primary key
UPDATE headwater_cursor
SET turn = (SELECT counter.next_offset FROM headwater_cursor AS counter WHERE counter.subscription_id = 0 AND counter.lane = 0)
WHERE subscription_id = ?1 AND lane = ?2

-- name: waiting
-- Purpose:    Waiting ranges that are due, the longest due first.
-- Parameters: ?1 subscription_id, ?2 now_ms, ?3 at most
-- Index:      headwater_outstanding_waiting
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_outstanding INDEXED BY headwater_outstanding_waiting
WHERE subscription_id = ?1 AND owner IS NULL AND due_at_ms <= ?2
ORDER BY due_at_ms, first_offset
LIMIT ?3
