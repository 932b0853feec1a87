-- Purpose:    The outstanding ranges of a subscription, of all its lanes.
-- Parameters: ?1 subscription_id
-- Index:      headwater_range_leased, headwater_range_waiting: every row is in one of them
SELECT first_offset, last_offset
FROM headwater_range
WHERE subscription_id = ?1 AND owner IS NOT NULL
UNION ALL
SELECT first_offset, last_offset
FROM headwater_range
WHERE subscription_id = ?1 AND owner IS NULL
