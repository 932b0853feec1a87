-- Purpose:    Forgets the marks of a topic that were made by a clock that was ahead, and tells where the watermark was.
-- Parameters: ?1 topic_id, ?2 now_ms
-- Index:      the primary key
DELETE FROM headwater_mark
WHERE topic_id = ?1 AND marked_at_ms > ?2
RETURNING watermark
