-- Purpose:    Forgets the backfill of a subscription that begins at the end of the log.
-- Parameters: ?1 subscription_id
-- Index:      the primary key
DELETE FROM headwater_backfill
WHERE subscription_id = ?1
