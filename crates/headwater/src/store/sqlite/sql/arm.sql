-- name: topic_seen
-- Purpose:    What tells a waiter that a topic may have something for it.
-- Parameters: ?1 topic_id
-- Index:      the primary key
SELECT last_offset, stirred
FROM headwater_topic
WHERE topic_id = ?1
