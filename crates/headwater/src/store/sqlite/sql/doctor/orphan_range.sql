-- Purpose:    Outstanding ranges of subscriptions that do not exist.
-- Parameters: none
-- Index:      the primary key of the subscriptions, once per range
SELECT part.subscription_id, part.token, part.first_offset, part.last_offset
FROM headwater_range AS part
WHERE NOT EXISTS (
    SELECT 1 FROM headwater_subscription AS subscription
    WHERE subscription.subscription_id = part.subscription_id
)
