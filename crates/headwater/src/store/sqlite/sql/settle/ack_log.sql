-- Purpose:    Notes who acked a range, if its topic keeps an ack log.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset, ?4 lane, ?5 owner, ?6 now_ms
-- Index:      the primary keys
INSERT INTO headwater_ack_log (topic_id, first_offset, last_offset, lane, lanes, group_name, owner, acked_at_ms)
SELECT topic.topic_id, ?2, ?3, ?4, subscription.lanes, subscription.group_name, ?5, ?6
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.subscription_id = ?1 AND topic.ack_log = 1
