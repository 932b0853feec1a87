-- Purpose:    Notes which bits of a topic may be in its records.
-- Parameters: ?1 topic_id, ?2 bits_used
-- Index:      the primary key
UPDATE headwater_topic
SET bits_used = ?2
WHERE topic_id = ?1
