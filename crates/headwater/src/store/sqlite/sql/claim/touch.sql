-- Purpose:    Notes that a lane was claimed, without moving its pointer.
-- Parameters: ?1 subscription_id, ?2 lane
-- Index:      the primary key
UPDATE headwater_cursor
SET turn = (SELECT counter.next_offset FROM headwater_cursor AS counter WHERE counter.subscription_id = 0 AND counter.lane = 0)
WHERE subscription_id = ?1 AND lane = ?2
