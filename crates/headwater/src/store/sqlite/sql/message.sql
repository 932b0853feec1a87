-- name: dead_letter
-- Purpose:    The newest dead letter of a subscription for an offset.
-- Parameters: ?1 subscription_id, ?2 offset
-- Index:      headwater_dead_letter_of: an operator does it
SELECT dead_letter_id
FROM headwater_dead_letter
WHERE subscription_id = ?1 AND message_offset = ?2
ORDER BY dead_letter_key DESC
LIMIT 1

-- name: groups
-- Purpose:    The subscriptions of a topic that are not cancelled, with their lanes.
-- Parameters: ?1 topic_id
-- Index:      headwater_subscription_group
SELECT subscription_id, group_name, lanes
FROM headwater_subscription
WHERE topic_id = ?1 AND state <> 'cancelled'
ORDER BY group_name

-- name: move_cursor
-- Purpose:    Moves one cursor of a subscription.
-- Parameters: ?1 subscription_id, ?2 lane, ?3 next_offset
-- Index:      the primary key
UPDATE headwater_cursor
SET next_offset = ?3
WHERE subscription_id = ?1 AND lane = ?2

-- name: next
-- Purpose:    One cursor of a subscription.
-- Parameters: ?1 subscription_id, ?2 lane
-- Index:      the primary key
SELECT next_offset
FROM headwater_cursor
WHERE subscription_id = ?1 AND lane = ?2

-- name: part
-- Purpose:    An outstanding range.
-- Parameters: ?1 token, ?2 first_offset
-- Index:      the primary key
SELECT token, first_offset, last_offset, subscription_id, lane, owner, due_at_ms, attempts, suspect, parked, key,
    last_error
FROM headwater_outstanding
WHERE token = ?1 AND first_offset = ?2
