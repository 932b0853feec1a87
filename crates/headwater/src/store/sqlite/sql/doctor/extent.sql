-- Purpose:    Where the messages of a topic lie, and how many retention took.
-- Parameters: ?1 topic_id
-- Index:      the primary key
SELECT first_offset, last_offset, removed
FROM headwater_topic
WHERE topic_id = ?1
