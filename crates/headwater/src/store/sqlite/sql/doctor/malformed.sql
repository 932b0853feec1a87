-- Purpose:    Outstanding ranges that run downwards, start below 1, or have impossible numbers.
-- Parameters: none
-- Index:      a scan of the outstanding ranges
SELECT subscription_id, token, first_offset, last_offset
FROM headwater_range
WHERE first_offset > last_offset OR first_offset < 1 OR attempts < 0 OR token < 1
