-- Purpose:    Notes that a lane was claimed, without moving its pointer.
-- Parameters: ?1 subscription_id, ?2 lane, ?3 token
-- Index:      the primary key
UPDATE headwater_cursor
SET claimed_token = ?3
WHERE subscription_id = ?1 AND lane = ?2
