-- Purpose:    The newest mark of a topic.
-- Parameters: ?1 topic_id
-- Index:      the primary key
SELECT marked_at_ms, watermark
FROM headwater_mark
WHERE topic_id = ?1
ORDER BY marked_at_ms DESC
LIMIT 1
