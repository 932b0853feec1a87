-- Purpose:    Deletes what was touched of a subscription that is removed.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_touched
WHERE subscription_id = ?1
