-- Purpose:    Sets the claim pointers of a subscription.
-- Parameters: ?1 subscription_id, ?2 next_offset
-- Index:      the primary key
UPDATE headwater_cursor
SET next_offset = ?2
WHERE subscription_id = ?1
