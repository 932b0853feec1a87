-- Purpose:    Deletes the processes' tellings of a subscription that is removed.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_activity
WHERE subscription_id = ?1
