-- Purpose:    How far the subscriptions of a topic are, by group.
-- Parameters: ?1 topic_id, ?2 now_ms
-- Index:      the unique index on (topic_id, group_name); headwater_range_leased and headwater_range_waiting per
--             subscription; headwater_dead_letter_of for the count
SELECT subscription.subscription_id, subscription.topic_id, subscription.group_name,
    (
        SELECT min(next_offset) FROM headwater_cursor AS cursor
        WHERE cursor.subscription_id = subscription.subscription_id
    ),
    (
        SELECT min(first_offset) FROM headwater_range AS leased
        WHERE leased.subscription_id = subscription.subscription_id AND leased.owner IS NOT NULL
    ),
    (
        SELECT min(first_offset) FROM headwater_range AS waiting
        WHERE waiting.subscription_id = subscription.subscription_id AND waiting.owner IS NULL
    ),
    (
        SELECT count(*) FROM headwater_range AS leased
        WHERE leased.subscription_id = subscription.subscription_id AND leased.owner IS NOT NULL
            AND leased.due_at_ms > ?2
    ),
    (
        SELECT count(*) FROM headwater_range AS waiting
        WHERE waiting.subscription_id = subscription.subscription_id AND waiting.owner IS NULL
    ) + (
        SELECT count(*) FROM headwater_range AS expired
        WHERE expired.subscription_id = subscription.subscription_id AND expired.owner IS NOT NULL
            AND expired.due_at_ms <= ?2
    ),
    (
        SELECT count(*) FROM headwater_dead_letter AS dead
        WHERE dead.subscription_id = subscription.subscription_id
    ),
    subscription.reassigned
FROM headwater_subscription AS subscription
WHERE subscription.topic_id = ?1
ORDER BY subscription.group_name
