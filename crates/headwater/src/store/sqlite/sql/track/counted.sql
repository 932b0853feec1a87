-- Purpose:    A subscription counts: if it is the first, what was published so far was published while none counted.
-- Parameters: ?1 topic_id
-- Index:      the primary key
UPDATE headwater_topic
SET zero_until = last_offset
WHERE topic_id = ?1 AND zero_until IS NULL
