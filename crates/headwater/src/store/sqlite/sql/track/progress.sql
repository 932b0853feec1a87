-- Purpose:    Stores how far messages have their records; nothing is written when nothing has moved.
-- Parameters: ?1 topic_id, ?2 tracked_until, ?3 change_until
-- Index:      the primary key
UPDATE headwater_topic
SET tracked_until = ?2, change_until = ?3
WHERE topic_id = ?1 AND (tracked_until <> ?2 OR change_until IS NOT ?3)
