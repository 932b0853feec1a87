-- Purpose:    Claim pointers of subscriptions that do not exist.
-- Parameters: none
-- Index:      the primary key of the subscriptions, once per pointer
SELECT cursor.subscription_id, cursor.lane
FROM headwater_cursor AS cursor
WHERE cursor.subscription_id <> 0
    AND NOT EXISTS (
        SELECT 1 FROM headwater_subscription AS subscription
        WHERE subscription.subscription_id = cursor.subscription_id
    )
