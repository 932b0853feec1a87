-- Purpose:    Deletes the token bucket of a subscription that is removed.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_group_rate
WHERE subscription_id = ?1
