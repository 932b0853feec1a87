-- Purpose:    Removes a range of offsets whose completion was set, before what became of it is stored.
-- Parameters: ?1 subscription_id, ?2 first_offset
-- Index:      the primary key
DELETE FROM headwater_applied
WHERE subscription_id = ?1 AND first_offset = ?2
