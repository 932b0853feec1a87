-- Purpose:    Counts a hand-out. The counter only rises, also when ranges are removed.
-- Parameters: none
-- Index:      the primary key
UPDATE headwater_cursor
SET next_offset = next_offset + 1
WHERE subscription_id = 0 AND lane = 0
RETURNING next_offset
