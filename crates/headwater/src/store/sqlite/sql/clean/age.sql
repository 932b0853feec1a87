-- Purpose:    Notes the last offset of a topic at an elapsed time.
-- Parameters: ?1 topic_id, ?2 elapsed_ms, ?3 last_offset
-- Index:      the primary key
INSERT OR REPLACE INTO headwater_age (topic_id, elapsed_ms, last_offset)
VALUES (?1, ?2, ?3)
