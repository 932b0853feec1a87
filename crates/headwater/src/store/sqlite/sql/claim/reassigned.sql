-- Purpose:    Counts an expired hand-out, and gives the names for the log line.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
UPDATE headwater_subscription
SET reassigned = reassigned + 1
WHERE subscription_id = ?1
RETURNING group_name, (SELECT name FROM headwater_topic WHERE headwater_topic.topic_id = headwater_subscription.topic_id)
