-- Purpose:    The outstanding ranges of a subscription that touch some offsets: what is in them is not handed out twice.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset
-- Index:      headwater_range_leased, headwater_range_waiting: every row is in one of them
SELECT lane, first_offset, last_offset
FROM headwater_range
WHERE subscription_id = ?1 AND owner IS NOT NULL AND first_offset <= ?3 AND last_offset >= ?2
UNION ALL
SELECT lane, first_offset, last_offset
FROM headwater_range
WHERE subscription_id = ?1 AND owner IS NULL AND first_offset <= ?3 AND last_offset >= ?2
