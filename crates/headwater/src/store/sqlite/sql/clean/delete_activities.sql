-- Purpose:    Deletes the processes' words of a subscription that is deleted.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_activity
WHERE subscription_id = ?1
