-- Purpose:    One subscription whatever its state, its slowest cursor and its topic.
-- Parameters: ?1 subscription_id
-- Index:      the primary keys
SELECT subscription.subscription_id, subscription.group_name, subscription.status, subscription.start_offset,
    subscription.bit, subscription.required_from, subscription.lanes, subscription.applied_until,
    coalesce((
        SELECT min(cursor.next_offset) FROM headwater_cursor AS cursor
        WHERE cursor.subscription_id = subscription.subscription_id
    ), subscription.start_offset),
    topic.semantics, subscription.topic_id
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.subscription_id = ?1
