-- name: extent
-- Purpose:    What maintenance needs of a topic.
-- Parameters: ?1 topic_id
-- Index:      the primary key
SELECT name, tracking, last_offset, first_offset, zero_until, zero_from, tracked_until, change_until,
    message_retention_ms, max_retention_ms, zero_subscription_retention_ms, bits_used, removed
FROM headwater_topic
WHERE topic_id = ?1

-- name: topic_get
-- Purpose:    A topic by its name.
-- Parameters: ?1 name
-- Index:      the unique index on name
SELECT topic_id, name, settings
FROM headwater_topic
WHERE name = ?1
