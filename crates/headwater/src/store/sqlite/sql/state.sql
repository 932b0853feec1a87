-- name: cancelled
-- Purpose:    The cancelled subscriptions of a group, and whether pending records still have their bits.
-- Parameters: ?1 topic_id, ?2 group
-- Index:      headwater_subscription_cancelled
SELECT subscription_id, bit IS NOT NULL AND released_until IS NOT NULL
FROM headwater_subscription
WHERE topic_id = ?1 AND group_name = ?2 AND state = 'cancelled'

-- name: cancelled_waiting
-- Purpose:    A cancelled subscription with waiting ranges.
-- Parameters: none
-- Index:      the subscriptions of the store, few
SELECT subscription_id
FROM headwater_subscription
WHERE state = 'cancelled' AND waiting > 0
LIMIT 1

-- name: dead_letter_count
-- Purpose:    How many dead letters the cancelled subscriptions of a group have.
-- Parameters: ?1 topic_id, ?2 group
-- Index:      headwater_subscription_cancelled; headwater_dead_letter_of, for each
SELECT count(*)
FROM headwater_subscription s
JOIN headwater_dead_letter d INDEXED BY headwater_dead_letter_of ON d.subscription_id = s.subscription_id
WHERE s.topic_id = ?1 AND s.group_name = ?2 AND s.state = 'cancelled'

-- name: forget_leases
-- Purpose:    Deletes the leases of a subscription: its tokens are lost.
-- Parameters: ?1 subscription_id
-- Index:      headwater_outstanding_leased, over what is in flight
DELETE FROM headwater_outstanding INDEXED BY headwater_outstanding_leased
WHERE subscription_id = ?1 AND owner IS NOT NULL

-- name: forget_ranges
-- Purpose:    Deletes all outstanding ranges of a subscription: its tokens are lost.
-- Parameters: ?1 subscription_id
-- Index:      a scan of the outstanding ranges: an operator does it, and an index by subscription alone would cost
--             every claim
DELETE FROM headwater_outstanding
WHERE subscription_id = ?1

-- name: forget_waiting
-- Purpose:    Deletes some waiting ranges of a subscription.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      headwater_outstanding_place, its first entries; the primary key
DELETE FROM headwater_outstanding
WHERE (token, first_offset) IN (
    SELECT waiting.token, waiting.first_offset
    FROM headwater_outstanding AS waiting INDEXED BY headwater_outstanding_place
    WHERE waiting.subscription_id = ?1 AND waiting.owner IS NULL
    ORDER BY waiting.first_offset
    LIMIT ?2
)

-- name: remove
-- Purpose:    Deletes a subscription.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_subscription
WHERE subscription_id = ?1

-- name: remove_activity
-- Purpose:    Deletes the activity of a subscription that is removed.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_activity
WHERE subscription_id = ?1

-- name: remove_cursor
-- Purpose:    Deletes the cursors of a subscription that is removed.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_cursor
WHERE subscription_id = ?1

-- name: remove_dead_letters
-- Purpose:    Deletes the dead letters of a subscription that is removed.
-- Parameters: ?1 subscription_id
-- Index:      headwater_dead_letter_of
DELETE FROM headwater_dead_letter
WHERE subscription_id = ?1

-- name: remove_group_rate
-- Purpose:    Deletes the token bucket of a subscription that is removed.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_group_rate
WHERE subscription_id = ?1

-- name: set
-- Purpose:    Moves a subscription from one state to another. A resume counts as a heartbeat, if there ever was one: the
--             group's processes have a whole timeout to send the next.
-- Parameters: ?1 subscription_id, ?2 from, ?3 to, ?4 now_ms, ?5 the reason of a pause
-- Index:      the primary key
UPDATE headwater_subscription
SET state = ?3, state_at_ms = ?4, state_reason = ?5,
    heartbeat_at_ms = CASE WHEN ?3 = 'active' AND (
            SELECT heard_at_ms FROM headwater_heard WHERE headwater_heard.subscription_id = ?1
        ) IS NOT NULL THEN max(coalesce(heartbeat_at_ms, ?4), ?4) ELSE heartbeat_at_ms END
WHERE subscription_id = ?1 AND state = ?2

-- name: some_dead_letters
-- Purpose:    The first dead letters of a subscription that is removed, and the lengths of their payloads.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      headwater_dead_letter_of, its first entries; the primary key
SELECT dead_letter_key, length(payload)
FROM headwater_dead_letter INDEXED BY headwater_dead_letter_of
WHERE subscription_id = ?1
ORDER BY dead_letter_key
LIMIT ?2

-- name: zero
-- Purpose:    Stores up to which offset messages were published while no subscription counted; NULL while none counts, and
--             then from which offset on.
-- Parameters: ?1 topic_id
-- Index:      the primary key; headwater_subscription_group
UPDATE headwater_topic
SET zero_until = CASE WHEN EXISTS (
        SELECT 1 FROM headwater_subscription AS subscription
        WHERE subscription.topic_id = ?1 AND subscription.state <> 'cancelled'
            AND (subscription.state <> 'dead' OR headwater_topic.semantics = 'queue')
    ) THEN coalesce(zero_until, last_offset) END,
    zero_from = CASE WHEN zero_until IS NULL THEN zero_from ELSE last_offset + 1 END
WHERE topic_id = ?1
