-- Purpose:    The leased ranges of a subscription that touch some offsets, of all its lanes.
-- Parameters: ?1 subscription_id, ?2 first_offset, ?3 last_offset
-- Index:      headwater_range_leased, over what is in flight
SELECT lane, first_offset, last_offset, token
FROM headwater_range INDEXED BY headwater_range_leased
WHERE subscription_id = ?1 AND owner IS NOT NULL AND first_offset <= ?3 AND last_offset >= ?2
