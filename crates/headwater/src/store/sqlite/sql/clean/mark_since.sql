-- Purpose:    The lowest the watermark of a topic has been since a time: what is at or below it has been done ever since.
-- Parameters: ?1 topic_id, ?2 since_ms
-- Index:      the primary key: about a thousand marks at most
SELECT min(watermark)
FROM headwater_mark
WHERE topic_id = ?1
    AND marked_at_ms >= (
        SELECT max(old.marked_at_ms) FROM headwater_mark AS old
        WHERE old.topic_id = ?1 AND old.marked_at_ms <= ?2
    )
