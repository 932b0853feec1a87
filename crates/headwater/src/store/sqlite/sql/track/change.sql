-- Purpose:    A topic changes how it records completion, or is as far as that is.
-- Parameters: ?1 topic_id, ?2 tracking, ?3 tracked_until, ?4 change_until
-- Index:      the primary key
UPDATE headwater_topic
SET tracking = ?2, tracked_until = ?3, change_until = ?4
WHERE topic_id = ?1
