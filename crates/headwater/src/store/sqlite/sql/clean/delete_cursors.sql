-- Purpose:    Deletes the claim pointers of a subscription that is deleted.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_cursor
WHERE subscription_id = ?1
