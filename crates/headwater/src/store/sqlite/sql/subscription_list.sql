-- name: subscription_list
-- Purpose:    The subscriptions of a topic, by group; cancelled ones last within a group.
-- Parameters: ?1 topic_id
-- Index:      headwater_subscription_group, headwater_subscription_cancelled; headwater_dead_letter_of for the count; the
--             primary keys of activities and owners; sorted, for operators only
SELECT subscription_id, group_name, lanes, status, status_at_ms,
    (SELECT heard_at_ms FROM headwater_heard AS heard WHERE heard.subscription_id = headwater_subscription.subscription_id),
    reassigned, missed, missed_first,
    missed_last, restarts, restarts_since_ms, restarts_floor,
    (
        SELECT count(*) FROM headwater_dead_letter AS dead
        WHERE dead.subscription_id = headwater_subscription.subscription_id
    ),
    0 AS cancelled
FROM headwater_subscription
WHERE topic_id = ?1 AND status <> 'cancelled'
UNION ALL
SELECT subscription_id, group_name, lanes, status, status_at_ms,
    (SELECT heard_at_ms FROM headwater_heard AS heard WHERE heard.subscription_id = headwater_subscription.subscription_id),
    reassigned, missed, missed_first,
    missed_last, restarts, restarts_since_ms, restarts_floor,
    (
        SELECT count(*) FROM headwater_dead_letter AS dead
        WHERE dead.subscription_id = headwater_subscription.subscription_id
    ),
    1 AS cancelled
FROM headwater_subscription
WHERE topic_id = ?1 AND status = 'cancelled'
ORDER BY group_name, cancelled, subscription_id DESC
