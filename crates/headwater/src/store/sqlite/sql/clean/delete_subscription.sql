-- Purpose:    Deletes a subscription.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_subscription
WHERE subscription_id = ?1
