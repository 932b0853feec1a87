-- Purpose:    The names of all topics, as they are stored.
-- Parameters: none
-- Index:      a scan of the topics, few
SELECT topic_id, name
FROM headwater_topic
ORDER BY topic_id
