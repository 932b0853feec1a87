-- Purpose:    Moves a claim pointer past what was handed out.
-- Parameters: ?1 subscription_id, ?2 lane (0 if unordered), ?3 next_offset
-- Index:      the primary key
UPDATE headwater_cursor
SET next_offset = ?3,
    turn = (SELECT counter.next_offset FROM headwater_cursor AS counter WHERE counter.subscription_id = 0 AND counter.lane = 0)
WHERE subscription_id = ?1 AND lane = ?2
