-- name: topic_seen
-- Purpose:    The values that change when a topic may have something for a waiter; of topic 0, the outbox, the newest entry.
-- Parameters: ?1 topic_id
-- Index:      the primary keys
SELECT last_offset, wakes
FROM headwater_topic
WHERE topic_id = ?1
UNION ALL
SELECT (SELECT coalesce(max(id), 0) FROM headwater_outbox_entry), 0
WHERE ?1 = 0
