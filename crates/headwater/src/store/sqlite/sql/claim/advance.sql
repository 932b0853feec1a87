-- Purpose:    Moves a claim pointer past what was handed out.
-- Parameters: ?1 subscription_id, ?2 lane (0 if unordered), ?3 next_offset, ?4 token
-- Index:      the primary key
UPDATE headwater_cursor
SET next_offset = ?3, claimed_token = ?4
WHERE subscription_id = ?1 AND lane = ?2
