-- Purpose:    Moves a topic's head to what was appended, and stirs waiters of other processes.
-- Parameters: ?1 topic_id, ?2 last_offset, ?3 stirs to add
-- Index:      the primary key
UPDATE headwater_topic
SET last_offset = ?2, stirred = stirred + ?3
WHERE topic_id = ?1
