-- Purpose:    Deletes the place in the records of a subscription that is removed.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_applied
WHERE subscription_id = ?1
