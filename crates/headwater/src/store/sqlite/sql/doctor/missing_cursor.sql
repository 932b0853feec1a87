-- Purpose:    Subscriptions whose claim pointers are not all there.
-- Parameters: none
-- Index:      the primary key of the cursors
SELECT subscription.subscription_id, subscription.lanes,
    (
        SELECT count(*) FROM headwater_cursor AS cursor
        WHERE cursor.subscription_id = subscription.subscription_id
    ) AS cursors
FROM headwater_subscription AS subscription
WHERE cursors <> max(subscription.lanes, 1)
