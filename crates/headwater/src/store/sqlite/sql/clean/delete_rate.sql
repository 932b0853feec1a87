-- Purpose:    Deletes the bucket of tokens of a subscription that is deleted.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_group_rate
WHERE subscription_id = ?1
