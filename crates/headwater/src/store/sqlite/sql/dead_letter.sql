-- name: list
-- Purpose:    The dead letters of a selection, oldest first.
-- Parameters: ?1 subscription_id, ?2 ids as a JSON array of hex, ?3 key, ?4 type, ?5 part of the error, ?6 buried from, ?7 buried
--             before (each NULL for any), ?8 at most
-- Index:      headwater_dead_letter_of
SELECT dead_letter_id, subscription_id, message_offset, message_id, key, type, payload, content_type, headers, error,
    attempts, buried_at_ms, correlation_id, created_at_ms
FROM headwater_dead_letter
WHERE subscription_id = ?1
    AND (?2 IS NULL OR lower(hex(dead_letter_id)) IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR key = ?3)
    AND (?4 IS NULL OR type = ?4)
    AND (?5 IS NULL OR instr(error, ?5) > 0)
    AND (?6 IS NULL OR buried_at_ms >= ?6)
    AND (?7 IS NULL OR buried_at_ms < ?7)
ORDER BY dead_letter_key
LIMIT ?8

-- name: newest
-- Purpose:    The newest dead letter of a subscription: later ones are not part of a redrive that begins now.
-- Parameters: ?1 subscription_id
-- Index:      headwater_dead_letter_of
SELECT coalesce(max(dead_letter_key), 0)
FROM headwater_dead_letter
WHERE subscription_id = ?1

-- name: of
-- Purpose:    The subscription of the dead letters.
-- Parameters: ?1 subscription_id
-- Index:      the primary keys
SELECT subscription.topic_id, subscription.lanes, subscription.state, topic.name, subscription.group_name
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.subscription_id = ?1

-- name: page
-- Purpose:    The next dead letters of a selection to redrive or purge.
-- Parameters: ?1 subscription_id, ?2 ids as a JSON array of hex, ?3 key, ?4 type, ?5 part of the error, ?6 buried from, ?7 buried
--             before (each NULL for any), ?8 after this dead_letter_key, ?9 up to this one, ?10 at most
-- Index:      headwater_dead_letter_of
SELECT dead_letter_key, message_offset, message_id, key
FROM headwater_dead_letter
WHERE subscription_id = ?1
    AND (?2 IS NULL OR lower(hex(dead_letter_id)) IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR key = ?3)
    AND (?4 IS NULL OR type = ?4)
    AND (?5 IS NULL OR instr(error, ?5) > 0)
    AND (?6 IS NULL OR buried_at_ms >= ?6)
    AND (?7 IS NULL OR buried_at_ms < ?7)
    AND dead_letter_key > ?8
    AND dead_letter_key <= ?9
ORDER BY dead_letter_key
LIMIT ?10

-- name: purge
-- Purpose:    Removes one dead letter.
-- Parameters: ?1 dead_letter_key
-- Index:      the primary key
DELETE FROM headwater_dead_letter
WHERE dead_letter_key = ?1
