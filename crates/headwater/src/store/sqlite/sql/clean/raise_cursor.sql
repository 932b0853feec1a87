-- Purpose:    Moves the cursors of a subscription past messages that are gone.
-- Parameters: ?1 subscription_id, ?2 next_offset
-- Index:      the primary key
UPDATE headwater_cursor
SET next_offset = ?2
WHERE subscription_id = ?1 AND next_offset < ?2
