-- Purpose:    Forgets what tracking has dealt with.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 token
-- Index:      the primary key
DELETE FROM headwater_touched
WHERE subscription_id = ?1 AND first_offset = ?2 AND token = ?3
