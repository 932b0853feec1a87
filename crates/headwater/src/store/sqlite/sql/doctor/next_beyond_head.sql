-- Purpose:    Claim pointers beyond the end of the log: what is published next would be passed over.
-- Parameters: none
-- Index:      primary keys
SELECT cursor.subscription_id, cursor.lane, cursor.next_offset, topic.last_offset
FROM headwater_cursor AS cursor
JOIN headwater_subscription AS subscription ON subscription.subscription_id = cursor.subscription_id
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE cursor.next_offset > topic.last_offset + 1
