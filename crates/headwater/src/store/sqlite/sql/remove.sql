-- name: activity
-- Purpose:    Deletes the activity of a subscription that is removed.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_activity
WHERE subscription_id = ?1

-- name: cancelled
-- Purpose:    The cancelled subscriptions of a group, and whether pending records still have their bits.
-- Parameters: ?1 topic_id, ?2 group
-- Index:      headwater_subscription_cancelled
SELECT subscription_id, bit IS NOT NULL AND released_until IS NOT NULL
FROM headwater_subscription
WHERE topic_id = ?1 AND group_name = ?2 AND status = 'cancelled'

-- name: cursor
-- Purpose:    Deletes the cursors of a subscription that is removed.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_cursor
WHERE subscription_id = ?1

-- name: dead_letter
-- Purpose:    Deletes the dead letters of a subscription that is removed.
-- Parameters: ?1 subscription_id
-- Index:      headwater_dead_letter_of
DELETE FROM headwater_dead_letter
WHERE subscription_id = ?1

-- name: dead_letter_count
-- Purpose:    How many dead letters the cancelled subscriptions of a group have.
-- Parameters: ?1 topic_id, ?2 group
-- Index:      headwater_subscription_cancelled; headwater_dead_letter_of, for each
SELECT count(*)
FROM headwater_subscription s
JOIN headwater_dead_letter d INDEXED BY headwater_dead_letter_of ON d.subscription_id = s.subscription_id
WHERE s.topic_id = ?1 AND s.group_name = ?2 AND s.status = 'cancelled'

-- name: dead_letters
-- Purpose:    Deletes some of the dead letters of a subscription that is removed.
-- Parameters: ?1 subscription_id, ?2 at most
-- Index:      headwater_dead_letter_of, its first entries; the primary key
DELETE FROM headwater_dead_letter
WHERE dead_letter_key IN (
    SELECT dead_letter_key FROM headwater_dead_letter INDEXED BY headwater_dead_letter_of
    WHERE subscription_id = ?1
    ORDER BY dead_letter_key
    LIMIT ?2
)

-- name: group_rate
-- Purpose:    Deletes the token bucket of a subscription that is removed.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_group_rate
WHERE subscription_id = ?1

-- name: subscription
-- Purpose:    Deletes a subscription.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_subscription
WHERE subscription_id = ?1
