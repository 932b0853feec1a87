-- Purpose:    No subscription counts any more.
-- Parameters: ?1 topic_id
-- Index:      the primary key
UPDATE headwater_topic
SET zero_until = NULL
WHERE topic_id = ?1
