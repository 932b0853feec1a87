-- Purpose:    Deletes the place in the records of a subscription that is deleted.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_applied
WHERE subscription_id = ?1
