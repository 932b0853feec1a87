-- Purpose:    Forgets what was touched in the records of a topic that has none any more.
-- Parameters: ?1 topic_id
-- Index:      the subscriptions of the topic, few; the primary key
DELETE FROM headwater_touched
WHERE subscription_id IN (SELECT subscription_id FROM headwater_subscription WHERE topic_id = ?1)
