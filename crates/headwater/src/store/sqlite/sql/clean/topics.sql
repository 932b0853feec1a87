-- Purpose:    All topics.
-- Parameters: none
-- Index:      the primary key, in order
SELECT topic_id
FROM headwater_topic
ORDER BY topic_id
