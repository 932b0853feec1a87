-- name: topic_seen
-- Purpose:    The values that change when a topic may have something for a waiter.
-- Parameters: ?1 topic_id
-- Index:      the primary key
SELECT last_offset, wakes
FROM headwater_topic
WHERE topic_id = ?1
