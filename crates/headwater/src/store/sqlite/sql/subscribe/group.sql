-- Purpose:    The subscription of a group: the one that lives, else the youngest cancelled one.
-- Parameters: ?1 topic_id, ?2 group
-- Index:      headwater_subscription_group, headwater_subscription_cancelled; what they give is sorted
SELECT subscription_id, lanes, status, missed, missed_first, missed_last, 0 AS cancelled
FROM headwater_subscription
WHERE topic_id = ?1 AND group_name = ?2 AND status <> 'cancelled'
UNION ALL
SELECT subscription_id, lanes, status, missed, missed_first, missed_last, 1 AS cancelled
FROM headwater_subscription
WHERE topic_id = ?1 AND group_name = ?2 AND status = 'cancelled'
ORDER BY cancelled, subscription_id DESC
LIMIT 1
