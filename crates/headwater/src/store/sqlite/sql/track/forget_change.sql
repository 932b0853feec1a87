-- Purpose:    The records of a topic are removed: its change to offset watermark is done.
-- Parameters: ?1 topic_id
-- Index:      the primary key
UPDATE headwater_topic
SET tracked_until = 0, change_until = NULL, bits_used = 0
WHERE topic_id = ?1
