-- Purpose:    Deletes the dead letters of a subscription that is removed.
-- Parameters: ?1 subscription_id
-- Index:      headwater_dead_letter_of
DELETE FROM headwater_dead_letter
WHERE subscription_id = ?1
