-- Purpose:    The watermark of a topic as it was at a time.
-- Parameters: ?1 topic_id, ?2 at_ms
-- Index:      the primary key
SELECT watermark
FROM headwater_mark
WHERE topic_id = ?1 AND marked_at_ms <= ?2
ORDER BY marked_at_ms DESC
LIMIT 1
