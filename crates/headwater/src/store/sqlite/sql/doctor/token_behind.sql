-- Purpose:    Outstanding ranges with a token above the counter: it would be handed out twice.
-- Parameters: none
-- Index:      the primary keys, at their ends
SELECT token
FROM headwater_range
WHERE token > (SELECT next_offset FROM headwater_cursor WHERE subscription_id = 0 AND lane = 0)
