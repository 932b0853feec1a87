-- Purpose:    The subscriptions of a topic that are not cancelled, and the slowest cursor of each.
-- Parameters: ?1 topic_id
-- Index:      headwater_subscription_group; the primary key of the cursors
SELECT subscription.subscription_id, subscription.group_name, subscription.status, subscription.start_offset,
    subscription.bit, subscription.required_from, subscription.lanes, subscription.applied_until,
    coalesce((
        SELECT min(cursor.next_offset) FROM headwater_cursor AS cursor
        WHERE cursor.subscription_id = subscription.subscription_id
    ), subscription.start_offset),
    topic.semantics
FROM headwater_subscription AS subscription
JOIN headwater_topic AS topic ON topic.topic_id = subscription.topic_id
WHERE subscription.topic_id = ?1 AND subscription.status <> 'cancelled'
ORDER BY subscription.group_name
