-- Purpose:    Forgets what was noted of a topic at an elapsed time.
-- Parameters: ?1 topic_id, ?2 elapsed_ms
-- Index:      the primary key
DELETE FROM headwater_age
WHERE topic_id = ?1 AND elapsed_ms = ?2
