-- Purpose:    Outstanding ranges at or above the claim pointer they were taken with.
-- Parameters: none
-- Index:      the primary key of the cursors, once per range
SELECT part.subscription_id, part.lane, part.first_offset, part.last_offset, cursor.next_offset
FROM headwater_range AS part
JOIN headwater_cursor AS cursor
    ON cursor.subscription_id = part.subscription_id AND cursor.lane = coalesce(part.lane, 0)
WHERE part.last_offset >= cursor.next_offset
