-- Purpose:    The elapsed times at which the last offset of a topic was noted.
-- Parameters: ?1 topic_id
-- Index:      the primary key: about a thousand at most
SELECT elapsed_ms
FROM headwater_age
WHERE topic_id = ?1
ORDER BY elapsed_ms
