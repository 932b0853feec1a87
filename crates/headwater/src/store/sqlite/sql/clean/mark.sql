-- Purpose:    Notes where the watermark of a topic is.
-- Parameters: ?1 topic_id, ?2 now_ms, ?3 watermark
-- Index:      the primary key
INSERT OR REPLACE INTO headwater_mark (topic_id, marked_at_ms, watermark)
VALUES (?1, ?2, ?3)
