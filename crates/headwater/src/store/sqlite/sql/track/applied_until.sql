-- Purpose:    Stores how far what is set in the records of a subscription is what it has done.
-- Parameters: ?1 subscription_id, ?2 applied_until
-- Index:      the primary key
UPDATE headwater_subscription
SET applied_until = ?2
WHERE subscription_id = ?1
