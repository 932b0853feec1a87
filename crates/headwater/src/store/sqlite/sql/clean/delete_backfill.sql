-- Purpose:    Deletes the backfill of a subscription that is deleted.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_backfill
WHERE subscription_id = ?1
