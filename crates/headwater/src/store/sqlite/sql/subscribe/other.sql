-- Purpose:    Any group of a topic: a queue takes only one.
-- Parameters: ?1 topic_id
-- Index:      the unique index on (topic_id, group_name)
SELECT group_name
FROM headwater_subscription
WHERE topic_id = ?1
LIMIT 1
